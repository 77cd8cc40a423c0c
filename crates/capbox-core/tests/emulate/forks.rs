//! `ForkBySnapshot`.

use std::time::Duration;

use capbox_core::provider::*;

use crate::liar::Liar;

#[tokio::test]
async fn each_fork_has_an_outcome_and_the_snapshot_is_deleted() {
    let liar = Liar::default();
    let snapshots = liar.snapshots.clone();
    snapshots.lock().unwrap().fails = Some(2);
    let sandbox = liar.create_one().await;
    let forks = sandbox.fork(20).await.unwrap();
    assert_eq!(forks.len(), 20);
    assert_eq!(forks.iter().filter(|fork| fork.is_ok()).count(), 19);
    let failed = forks.into_iter().find_map(Result::err).unwrap();
    assert_eq!((failed.kind(), failed.operation()), (ErrorKind::NotFound, Some("create")));
    let snapshots = snapshots.lock().unwrap();
    assert_eq!((snapshots.living.len(), &*snapshots.deleted), (0, &["snapshot-0".to_owned()][..]));
}

#[tokio::test]
async fn a_fork_that_is_given_up_leaves_no_snapshot() {
    let liar = Liar::default();
    let snapshots = liar.snapshots.clone();
    snapshots.lock().unwrap().hangs = true;
    let sandbox = liar.create_one().await;
    tokio::time::timeout(Duration::from_millis(50), sandbox.fork(3)).await.unwrap_err();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        if !snapshots.lock().unwrap().deleted.is_empty() {
            break;
        }
    }
    let snapshots = snapshots.lock().unwrap();
    assert_eq!((snapshots.living.len(), snapshots.deleted.len()), (0, 1));
}

/// What is withheld from a sandbox is withheld from its copies.
#[tokio::test]
async fn a_fork_has_no_more_rights() {
    let sandbox = Liar::default().create_one().await;
    let withheld = sandbox.withholding(&Lowered::none().withheld(Capability::FilesRead, "a test"));
    let fork = withheld.fork(1).await.unwrap().remove(0).unwrap();
    assert_eq!(fork.require(Capability::FilesRead).unwrap_err().refusal, Refusal::Withheld);
    assert!(fork.can(Capability::FilesList));
}
