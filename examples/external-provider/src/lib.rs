//! A provider outside the capbox workspace: *shelf*, whose sandboxes keep files in memory and run nothing.
//!
//! It shows what such a provider needs: a [`Backend`], a table by [`v1`](capbox_core::provider::v1), which stays
//! as it is when capbox gets new rows, and one trait for each row that the table answers `Native`. Its contract
//! test is in `tests/contract.rs`.

mod files;
mod table;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use capbox_core::provider::v1::*;

/// What a registry knows of this provider: `Registry::builtin().with(PROVIDER).client("shelf://")`, with the
/// registry of the crate `capbox`, opens it. Each client opened so has a store of its own.
pub const PROVIDER: Provider = Provider {
    id: "shelf",
    tables: &[Shelf::ROWS],
    open: |uri| {
        uri.no_target()?;
        uri.finish()?;
        Ok(Client::new(Shelf::default()).into_any())
    },
};

/// The provider: all clients of one store see the same sandboxes.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    store: Arc<Store>,
}

/// Where the sandboxes are.
#[derive(Debug, Default)]
pub struct Store(Mutex<Sandboxes>);

#[derive(Debug, Default)]
struct Sandboxes {
    made: u64,
    living: BTreeMap<String, Arc<Mutex<Kept>>>,
}

/// One sandbox: raw, for those who need more than capbox offers.
#[derive(Debug)]
pub struct Kept {
    /// Its files and folders, by path without the slash in front.
    pub nodes: BTreeMap<Vec<u8>, Node>,
    labels: Labels,
    ends: Instant,
    detached: bool,
}

/// A file or a folder.
#[derive(Clone, Debug)]
pub enum Node {
    /// A folder.
    Folder,
    /// A file with its content.
    File(bytes::Bytes),
}

/// What create takes.
#[derive(Debug, Default)]
pub struct Create {
    labels: Labels,
    ttl: Duration,
}

impl Accept<cap::Labels> for Create {
    fn accept(&mut self, labels: Labels) {
        self.labels = labels;
    }
}

impl Accept<cap::Ttl> for Create {
    fn accept(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }
}

impl Accept<cap::EgressControl> for Create {
    fn accept(&mut self, _: DenyEgress) {
        // Nothing runs in a sandbox, so nothing is reached: denied is the only way it can be.
    }
}

/// What exec would take; nothing is executed here.
#[derive(Debug)]
pub struct NoExec;

impl From<Command> for NoExec {
    fn from(_: Command) -> Self {
        Self
    }
}

/// A handle on a sandbox. The creator's holds the lease.
#[derive(Debug)]
pub struct Session {
    id: String,
    kept: Arc<Mutex<Kept>>,
    store: Arc<Store>,
    leased: bool,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.leased && !lock(&self.kept).detached {
            lock(&self.store.0).living.remove(&self.id);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// The living sandboxes; those whose time is up are removed first.
    fn living(&self) -> MutexGuard<'_, Sandboxes> {
        let mut sandboxes = lock(&self.0);
        let now = Instant::now();
        sandboxes.living.retain(|_, kept| lock(kept).ends > now);
        sandboxes
    }
}

impl Session {
    /// The sandbox, while it lives.
    fn kept(&self) -> Result<MutexGuard<'_, Kept>> {
        if !self.store.living().living.contains_key(&self.id) {
            return Err(Error::new(ErrorKind::SandboxGone, format!("the sandbox `{}` is gone", self.id)));
        }
        Ok(lock(&self.kept))
    }
}

#[async_trait]
impl Backend for Shelf {
    const ID: &'static str = "shelf";
    const FLAGS: Flags = Flags::DEFAULT.id_stable(true).on_this_machine(true);

    type Session = Session;
    type Create = Create;
    type Exec = NoExec;
    type NativeClient = Store;
    type NativeSandbox = Mutex<Kept>;

    async fn create(&self, create: Create) -> Result<Created<Session>> {
        let mut sandboxes = self.store.living();
        sandboxes.made += 1;
        let id = format!("shelf-{}", sandboxes.made);
        let kept = Arc::new(Mutex::new(Kept {
            nodes: BTreeMap::new(),
            labels: create.labels,
            ends: Instant::now() + create.ttl,
            detached: false,
        }));
        sandboxes.living.insert(id.clone(), kept.clone());
        Ok(Created::new(Session { id, kept, store: self.store.clone(), leased: true }))
    }

    fn id(session: &Session) -> &str {
        &session.id
    }

    async fn destroy(session: &Session) -> Result<()> {
        session.store.living().living.remove(&session.id);
        Ok(())
    }

    async fn detach(session: &Session) -> Result<()> {
        session.kept()?.detached = true;
        Ok(())
    }

    async fn reap(&self) -> Result<Vec<String>> {
        Ok(Vec::new()) // owners are in this process, and take theirs along
    }

    fn native_client(&self) -> &Store {
        &self.store
    }

    fn native(session: &Session) -> &Mutex<Kept> {
        &session.kept
    }
}

#[async_trait]
impl List for Shelf {
    async fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>> {
        let sandboxes = self.store.living();
        let mut list = Vec::new();
        for (id, kept) in &sandboxes.living {
            let kept = lock(kept);
            if kept.labels.contain(labels) {
                let mut info = SandboxInfo::running(id.as_str());
                info.labels = kept.labels.clone();
                info.ttl_left = Some(kept.ends.saturating_duration_since(Instant::now()));
                info.detached = kept.detached;
                list.push(info);
            }
        }
        Ok(list)
    }
}

#[async_trait]
impl Connect for Shelf {
    async fn connect(&self, id: &str) -> Result<Created<Session>> {
        match self.store.living().living.get(id).cloned() {
            Some(kept) => Ok(Created::existing(Session {
                id: id.to_owned(),
                kept,
                store: self.store.clone(),
                leased: false,
            })),
            None => Err(Error::new(ErrorKind::NotFound, format!("there is no sandbox `{id}`"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_opened_by_its_id() {
        let open = |uri: &str| (PROVIDER.open)(uri.parse().expect("well-formed"));
        assert_eq!(open("shelf://").expect("a client").provider(), "shelf");
        assert!(open("shelf://target").is_err() && open("shelf://?key=1").is_err());
    }
}
