//! The virtual disk: a tree that is copied on write, so that a snapshot costs nothing.
//!
//! Every operation takes one lock for its whole length, so nobody sees half of one, and no path is swapped
//! between check and use. There is nothing outside the tree that a path could lead to.

mod fault;
mod tree;
mod vfs;
mod watch;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use capbox_core::provider::FileEventKind;

pub(crate) use self::fault::{Fault, Outcome};
use self::tree::Tree;
pub(crate) use self::tree::{Kind, Node, Route, base};
use self::watch::Watchers;
pub(crate) use self::watch::{Seen, Watch};

/// A sandbox's disk. Clones are the same disk.
#[derive(Clone, Debug)]
pub(crate) struct Disk(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    tree: Tree,
    watchers: Watchers,
}

impl Disk {
    /// A disk of `capacity` bytes that starts as `root`.
    pub(crate) fn new(root: Arc<Node>, capacity: u64) -> Outcome<Self> {
        let tree = Tree::new(root, capacity)?;
        Ok(Self(Arc::new(Mutex::new(Inner { tree, watchers: Watchers::default() }))))
    }

    /// All that is on it, as it is now.
    pub(crate) fn root(&self) -> Arc<Node> {
        self.lock().tree.root().clone()
    }

    /// Its size in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.lock().tree.capacity()
    }

    /// How many bytes are still free.
    pub(crate) fn free(&self) -> u64 {
        let inner = self.lock();
        inner.tree.capacity().saturating_sub(inner.tree.used())
    }

    /// What is at `route`; the last link is followed if asked for.
    pub(crate) fn node(&self, route: &Route, follow: bool) -> Outcome<Arc<Node>> {
        self.lock().tree.node(route, follow)
    }

    /// The bytes of a regular file.
    pub(crate) fn read(&self, route: &Route) -> Outcome<Arc<Vec<u8>>> {
        match &self.lock().tree.node(route, true)?.kind {
            Kind::File(content) => Ok(content.clone()),
            Kind::Directory(_) => Err(Fault::IsADirectory),
            Kind::Device(_) => Err(Fault::NotRegular),
            Kind::Link(_) => Err(Fault::TooManyLinks),
        }
    }

    /// Replace or make a regular file. A new one gets `mode`.
    pub(crate) fn write(&self, route: &Route, content: Vec<u8>, mode: u32) -> Outcome<()> {
        self.change(route, |old| match old {
            None => Ok((Node::new(Kind::file(content), mode), FileEventKind::Created)),
            Some(node) => match &node.kind {
                Kind::File(_) => Ok((Node::new(Kind::file(content), node.mode), FileEventKind::Modified)),
                Kind::Directory(_) => Err(Fault::IsADirectory),
                Kind::Device(_) => Err(Fault::NotRegular),
                Kind::Link(_) => Err(Fault::TooManyLinks),
            },
        })
    }

    /// Add to a regular file, or make one.
    pub(crate) fn append(&self, route: &Route, more: &[u8]) -> Outcome<()> {
        let mut inner = self.lock();
        let place = inner.tree.place(route, true)?;
        let new = place.node.is_none();
        inner.tree.append(&place.path, more)?;
        let kind = if new { FileEventKind::Created } else { FileEventKind::Modified };
        inner.watchers.tell(kind, &place.path);
        Ok(())
    }

    /// Make a folder; with `parents` also those above, and no error where it is there.
    pub(crate) fn mkdir(&self, route: &Route, parents: bool) -> Outcome<()> {
        let mut inner = self.lock();
        let Inner { tree, watchers } = &mut *inner;
        for part in route.prefixes(parents) {
            let place = tree.place(&part, true)?;
            match place.node.as_deref().map(|node| &node.kind) {
                Some(Kind::Directory(_)) if parents => {}
                Some(_) => return Err(Fault::Exists),
                None => {
                    tree.insert(&place.path, Node::directory())?;
                    watchers.tell(FileEventKind::Created, &place.path);
                }
            }
        }
        Ok(())
    }

    /// Make a symbolic link that says `target`.
    pub(crate) fn symlink(&self, target: Vec<u8>, route: &Route) -> Outcome<()> {
        let mut inner = self.lock();
        let place = inner.tree.place(route, false)?;
        if place.node.is_some() {
            return Err(Fault::Exists);
        }
        inner.tree.insert(&place.path, Node::new(Kind::Link(target), 0o777))?;
        inner.watchers.tell(FileEventKind::Created, &place.path);
        Ok(())
    }

    /// Remove a file, a link or an empty folder; with `recursive` a folder with all that is in it.
    pub(crate) fn remove(&self, route: &Route, recursive: bool) -> Outcome<()> {
        let mut inner = self.lock();
        let Inner { tree, watchers } = &mut *inner;
        let place = tree.place(route, false)?;
        let node = place.node.ok_or(Fault::NotFound)?;
        if node.children().is_some_and(|children| !recursive && !children.is_empty()) {
            return Err(Fault::NotEmpty);
        }
        tree.take(&place.path)?;
        node.each_below(&place.path, &mut |path| watchers.tell(FileEventKind::Removed, path));
        watchers.tell(FileEventKind::Removed, &place.path);
        Ok(())
    }

    /// Rename, replacing a file or an empty folder that is there.
    pub(crate) fn rename(&self, from: &Route, to: &Route) -> Outcome<()> {
        let mut inner = self.lock();
        let Inner { tree, watchers } = &mut *inner;
        let (from, to) = (tree.place(from, false)?, tree.place(to, false)?);
        let node = from.node.ok_or(Fault::NotFound)?;
        if from.path == to.path {
            return Ok(());
        }
        if to.path.starts_with(&from.path) {
            return Err(Fault::IntoItself);
        }
        if let Some(old) = &to.node {
            match (node.children(), old.children()) {
                (None, Some(_)) => return Err(Fault::IsADirectory),
                (Some(_), None) => return Err(Fault::NotADirectory),
                (Some(_), Some(children)) if !children.is_empty() => return Err(Fault::NotEmpty),
                (Some(_), Some(_)) | (None, None) => {}
            }
        }
        // First the new place, which can be refused; for a moment the node is at both.
        tree.insert_node(&to.path, node)?;
        tree.take(&from.path)?;
        watchers.tell(FileEventKind::Removed, &from.path);
        watchers
            .tell(if to.node.is_some() { FileEventKind::Modified } else { FileEventKind::Created }, &to.path);
        Ok(())
    }

    /// Set the permission bits.
    pub(crate) fn set_mode(&self, route: &Route, mode: u32) -> Outcome<()> {
        self.touch(route, |node| node.mode = mode)
    }

    /// Set when it changed last.
    pub(crate) fn set_modified(&self, route: &Route, time: SystemTime) -> Outcome<()> {
        self.touch(route, |node| node.modified = time)
    }

    /// Follow the changes in the folder at `route`; with `recursive` in all that is below.
    pub(crate) fn watch(&self, route: &Route, recursive: bool) -> Outcome<Watch> {
        let mut inner = self.lock();
        let place = inner.tree.place(route, true)?;
        match place.node {
            None => Err(Fault::NotFound),
            Some(node) if node.children().is_none() => Err(Fault::NotADirectory),
            Some(_) => Ok(inner.watchers.add(place.path, recursive)),
        }
    }

    /// The sandbox is gone: end every watch.
    pub(crate) fn close(&self) {
        self.lock().watchers.close();
    }

    /// Put what `new` makes of the old node into its place.
    fn change(
        &self,
        route: &Route,
        new: impl FnOnce(Option<&Node>) -> Outcome<(Node, FileEventKind)>,
    ) -> Outcome<()> {
        let mut inner = self.lock();
        let place = inner.tree.place(route, true)?;
        let (node, kind) = new(place.node.as_deref())?;
        inner.tree.insert(&place.path, node)?;
        inner.watchers.tell(kind, &place.path);
        Ok(())
    }

    fn touch(&self, route: &Route, edit: impl FnOnce(&mut Node)) -> Outcome<()> {
        let mut inner = self.lock();
        let place = inner.tree.place(route, true)?;
        let mut node = Node::clone(&*place.node.ok_or(Fault::NotFound)?);
        edit(&mut node);
        inner.tree.insert(&place.path, node)?;
        inner.watchers.tell(FileEventKind::Modified, &place.path);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
