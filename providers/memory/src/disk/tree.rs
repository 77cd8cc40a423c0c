//! The tree: nodes shared between disk and snapshots until one of them changes.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use super::{Fault, Outcome};
use crate::shell;

/// A name in a folder.
pub(crate) type Name = Box<[u8]>;

/// How many links one look-up follows at most, as on Linux.
const MAX_LINKS: usize = 40;
const MAX_NAME: usize = 255;
/// How deep folders nest at most, so that walking them needs a bounded stack.
pub(crate) const MAX_DEPTH: usize = 128;
/// What an entry takes of the disk beside its content, so that empty files fill it too.
const ENTRY_SIZE: u64 = 256;

/// A file, a folder, a link or a device.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) modified: SystemTime,
}

/// What a node is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    File(Arc<Vec<u8>>),
    Directory(BTreeMap<Name, Arc<Node>>),
    Link(Vec<u8>),
    Device(Device),
}

/// What answers to a path below `/dev`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Null,
    Zero,
    Random,
}

impl Kind {
    pub(crate) fn file(content: Vec<u8>) -> Self {
        Self::File(Arc::new(content))
    }
}

impl Node {
    pub(crate) fn new(kind: Kind, mode: u32) -> Self {
        Self { kind, mode, modified: SystemTime::now() }
    }

    pub(crate) fn directory() -> Self {
        Self::new(Kind::Directory(BTreeMap::new()), 0o755)
    }

    /// What is in it, of a folder.
    pub(crate) fn children(&self) -> Option<&BTreeMap<Name, Arc<Self>>> {
        match &self.kind {
            Kind::Directory(children) => Some(children),
            _ => None,
        }
    }

    /// The size in bytes, of a file or link.
    pub(crate) fn size(&self) -> u64 {
        match &self.kind {
            Kind::File(content) => content.len() as u64,
            Kind::Link(target) => target.len() as u64,
            Kind::Directory(_) | Kind::Device(_) => 0,
        }
    }

    /// How many levels are below it.
    fn height(&self) -> usize {
        self.children().into_iter().flatten().map(|(_, node)| 1 + node.height()).max().unwrap_or(0)
    }

    /// Calls `visit` with the path of everything below this node, which is at `path`; the deepest first.
    pub(crate) fn each_below(&self, path: &[Name], visit: &mut impl FnMut(&[Name])) {
        for (name, node) in self.children().into_iter().flatten() {
            let mut path = path.to_vec();
            path.push(name.clone());
            node.each_below(&path, visit);
            visit(&path);
        }
    }

    /// What it takes of the disk, with all that is below.
    fn cost(&self) -> u64 {
        let below: u64 = self.children().into_iter().flatten().map(|(_, node)| node.cost()).sum();
        ENTRY_SIZE + self.size() + below
    }
}

/// A path as it was asked for, in parts. It starts at the root.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    parts: Vec<Name>,
    /// It ends in a slash, so only a folder will do.
    folder: bool,
}

impl Route {
    /// The route of a path in bytes, from the folder `start` where it is relative.
    pub(crate) fn new(path: &[u8], start: &[u8]) -> Self {
        let start = if path.first() == Some(&b'/') { &b""[..] } else { start };
        Self {
            parts: split(start).chain(split(path)).collect(),
            folder: path.ends_with(b"/") || path.ends_with(b"/.") || path == b".",
        }
    }

    /// The routes to the folders above, if asked for, and then this one.
    pub(super) fn prefixes(&self, above: bool) -> impl Iterator<Item = Self> + '_ {
        let first = if above { 1 } else { self.parts.len() };
        let whole = self.parts.is_empty().then(|| Self { parts: Vec::new(), folder: false });
        // A trailing slash is no reason to refuse what makes a folder.
        let some = (first.max(1)..=self.parts.len())
            .map(|n| Self { parts: self.parts[..n].to_vec(), folder: false });
        whole.into_iter().chain(some)
    }
}

impl From<&Path> for Route {
    /// The interpreter's paths are absolute.
    fn from(path: &Path) -> Self {
        let parts = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.as_encoded_bytes().into()),
            Component::ParentDir => Some(b".."[..].into()),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
        });
        Self { parts: parts.collect(), folder: false }
    }
}

fn split(path: &[u8]) -> impl DoubleEndedIterator<Item = Name> + '_ {
    path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".").map(Name::from)
}

/// Where a route leads: a path without links, and what is there.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: Vec<Name>,
    pub(crate) node: Option<Arc<Node>>,
}

/// The tree of one disk.
#[derive(Debug)]
pub(super) struct Tree {
    root: Arc<Node>,
    used: u64,
    capacity: u64,
}

impl Tree {
    pub(super) fn new(root: Arc<Node>, capacity: u64) -> Outcome<Self> {
        // The base is not the sandbox's own.
        let used = root.cost().saturating_sub(BASE.1);
        if used > capacity { Err(Fault::Full) } else { Ok(Self { root, used, capacity }) }
    }

    pub(super) fn root(&self) -> &Arc<Node> {
        &self.root
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What is at `route`; the last link is followed if asked for.
    pub(super) fn node(&self, route: &Route, follow: bool) -> Outcome<Arc<Node>> {
        self.place(route, follow)?.node.ok_or(Fault::NotFound)
    }

    /// Where `route` leads. The last part need not exist; it is followed if it is a link and that is asked for.
    pub(super) fn place(&self, route: &Route, follow: bool) -> Outcome<Place> {
        let mut todo: Vec<Name> = route.parts.iter().rev().cloned().collect();
        let mut path: Vec<Name> = Vec::new();
        let mut nodes: Vec<&Arc<Node>> = vec![&self.root];
        let mut links = 0;
        while let Some(name) = todo.pop() {
            let here = nodes.last().expect("the root stays");
            let children = here.children().ok_or(Fault::NotADirectory)?;
            if &*name == b".." {
                path.pop();
                nodes.truncate(nodes.len().saturating_sub(1).max(1));
                continue;
            }
            let Some(node) = children.get(&name) else {
                if !todo.is_empty() {
                    return Err(Fault::NotFound);
                }
                path.push(name);
                return Ok(Place { path, node: None });
            };
            match &node.kind {
                Kind::Link(target) if follow || route.folder || !todo.is_empty() => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Fault::TooManyLinks);
                    }
                    if target.first() == Some(&b'/') {
                        path.clear();
                        nodes.truncate(1);
                    }
                    todo.extend(split(target).rev());
                }
                _ => {
                    path.push(name);
                    nodes.push(node);
                }
            }
        }
        let node = (*nodes.last().expect("the root stays")).clone();
        if route.folder && node.children().is_none() {
            return Err(Fault::NotADirectory);
        }
        Ok(Place { path, node: Some(node) })
    }

    /// Refuse a path that is too long or too deep, or the root.
    fn check_path(path: &[Name]) -> Outcome<()> {
        let Some(name) = path.last() else { return Err(Fault::Root) };
        if name.len() > MAX_NAME || path.len() > MAX_DEPTH { Err(Fault::TooLong) } else { Ok(()) }
    }

    /// Put `node` at `path`, in place of what is there.
    pub(super) fn insert(&mut self, path: &[Name], node: Node) -> Outcome<()> {
        if path.is_empty() {
            // Only the attributes of the root change: it is a folder and stays one.
            let root = Arc::make_mut(&mut self.root);
            (root.mode, root.modified) = (node.mode, node.modified);
            return Ok(());
        }
        self.insert_node(path, Arc::new(node))
    }

    pub(super) fn insert_node(&mut self, path: &[Name], node: Arc<Node>) -> Outcome<()> {
        Self::check_path(path)?;
        let old = self.at(path).map_or(0, Node::cost);
        let used = self.used.saturating_sub(old) + node.cost();
        if used > self.capacity && used > self.used {
            return Err(Fault::Full);
        }
        if path.len() + node.height() > MAX_DEPTH {
            return Err(Fault::TooLong);
        }
        let (name, above) = path.split_last().expect("checked above");
        let (children, modified) = self.folder_mut(above)?;
        if children.insert(name.clone(), node).is_none() {
            *modified = SystemTime::now();
        }
        self.used = used;
        Ok(())
    }

    /// Add to the file at `path`, or make it.
    pub(super) fn append(&mut self, path: &[Name], more: &[u8]) -> Outcome<()> {
        match self.at(path).map(|node| &node.kind) {
            None => return self.insert(path, Node::new(Kind::file(more.to_vec()), 0o644)),
            Some(Kind::File(_)) => {}
            Some(Kind::Directory(_)) => return Err(Fault::IsADirectory),
            Some(Kind::Device(_)) => return Err(Fault::NotRegular),
            Some(Kind::Link(_)) => return Err(Fault::TooManyLinks),
        }
        let used = self.used + more.len() as u64;
        if used > self.capacity {
            return Err(Fault::Full);
        }
        let (name, above) = path.split_last().ok_or(Fault::Root)?;
        let (children, _) = self.folder_mut(above)?;
        let node = children.get_mut(name).map(Arc::make_mut).ok_or(Fault::NotFound)?;
        if let Kind::File(content) = &mut node.kind {
            Arc::make_mut(content).extend_from_slice(more);
            node.modified = SystemTime::now();
        }
        self.used = used;
        Ok(())
    }

    /// Take away what is at `path`.
    pub(super) fn take(&mut self, path: &[Name]) -> Outcome<()> {
        let (name, above) = path.split_last().ok_or(Fault::Root)?;
        let (children, modified) = self.folder_mut(above)?;
        let node = children.remove(name).ok_or(Fault::NotFound)?;
        *modified = SystemTime::now();
        self.used = self.used.saturating_sub(node.cost());
        Ok(())
    }

    fn at(&self, path: &[Name]) -> Option<&Node> {
        path.iter().try_fold(&*self.root, |node, name| node.children()?.get(name).map(|child| &**child))
    }

    /// What is in the folder at `path`, and when that changed last; to be changed.
    fn folder_mut(&mut self, path: &[Name]) -> Outcome<(&mut BTreeMap<Name, Arc<Node>>, &mut SystemTime)> {
        let mut node = Arc::make_mut(&mut self.root);
        for name in path {
            let Kind::Directory(children) = &mut node.kind else { return Err(Fault::NotADirectory) };
            node = Arc::make_mut(children.get_mut(name).ok_or(Fault::NotFound)?);
        }
        match &mut node.kind {
            Kind::Directory(children) => Ok((children, &mut node.modified)),
            _ => Err(Fault::NotADirectory),
        }
    }
}

/// What a new sandbox finds, and its cost: folders, a few files of `/etc`, devices, and a stub for each command.
static BASE: LazyLock<(Arc<Node>, u64)> = LazyLock::new(|| {
    let mut tree = Tree { root: Arc::new(Node::directory()), used: 0, capacity: u64::MAX };
    let mut put = |path: &str, node: Node| {
        let parts: Vec<Name> = split(path.as_bytes()).collect();
        tree.insert(&parts, node).expect("the folders above come first");
    };
    for folder in ["/dev", "/etc", "/home", shell::HOME, "/usr", "/usr/bin", "/usr/local", "/usr/local/bin"] {
        put(folder, Node::directory());
    }
    put("/tmp", Node::new(Kind::Directory(BTreeMap::new()), 0o1777));
    put("/bin", Node::new(Kind::Link(b"usr/bin".to_vec()), 0o777));
    for (name, device) in [
        ("null", Device::Null),
        ("zero", Device::Zero),
        ("random", Device::Random),
        ("urandom", Device::Random),
    ] {
        put(&format!("/dev/{name}"), Node::new(Kind::Device(device), 0o666));
    }
    for (path, text) in shell::system_files() {
        put(path, Node::new(Kind::file(text.into_bytes()), 0o644));
    }
    for name in shell::commands() {
        put(&format!("/usr/bin/{name}"), Node::new(Kind::file(shell::stub(&name)), 0o755));
    }
    let cost = tree.root.cost();
    (tree.root, cost)
});

/// What a new sandbox starts from.
pub(crate) fn base() -> Arc<Node> {
    BASE.0.clone()
}
