//! Sandboxes: their life, their names, their snapshots.

use std::time::Duration;

use capbox_core::api::{ExitStatus, Sandbox};
use capbox_core::capability::Capability;
use capbox_core::capability::flags::Isolation;
use capbox_core::error::ErrorKind;
use capbox_core::provider::{Labels, Network, Spec};
use capbox_memory::{Config, Memory, PROVIDER};

async fn says(sandbox: &Sandbox<Memory>, text: &str) -> String {
    let output = sandbox.exec(text).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout.text().into_owned()
}

/// B203: what is gone is gone, for every call; to destroy it again is no error.
#[tokio::test]
async fn gone() {
    let client = Memory::new();
    let sandbox = client.create().await.unwrap();
    let other = client.connect(sandbox.id()).await.unwrap();
    let process = sandbox.spawn("sleep 100").background().await.unwrap();
    let mut watch = sandbox.files().watch("/tmp").await.unwrap();
    other.destroy().await.unwrap();
    other.destroy().await.unwrap();
    sandbox.destroy().await.unwrap();

    let id = process.id().clone();
    let errors = [
        sandbox.exec("true").await.err(),
        sandbox.spawn("true").await.err(),
        sandbox.spawn("true").background().await.err(),
        sandbox.files().read("/etc/passwd").await.err(),
        sandbox.files().write("/tmp/x", "x").await.err(),
        sandbox.files().list("/").await.err(),
        sandbox.files().mkdir("/tmp/x").await.err(),
        sandbox.processes().await.err(),
        process.kill().await.err(),
        process.attach().await.err(),
        sandbox.process(id).logs(0).await.err(),
        sandbox.snapshots().create(None).await.err(),
        sandbox.fork(1).await.err(),
        sandbox.detach().await.err(),
        watch.next().await.err(),
    ];
    for (n, error) in errors.into_iter().enumerate() {
        assert_eq!(error.unwrap_or_else(|| panic!("{n}")).kind(), ErrorKind::SandboxGone, "{n}");
    }
    assert_eq!(client.connect(sandbox.id()).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!client.destroy(sandbox.id()).await.unwrap());
    assert!(client.list().await.unwrap().is_empty());
}

/// A command that runs when its sandbox ends says so, with what it printed.
#[tokio::test(start_paused = true)]
async fn ended_under_a_command() {
    let sandbox = Memory::new().create().ttl(Duration::from_secs(10)).await.unwrap();
    let output = sandbox.exec("echo begun; sleep 100; echo no").await.unwrap();
    assert_eq!((output.status, output.stdout.text()), (ExitStatus::SandboxGone, "begun\n".into()));
}

/// The lease ends with its last handle, whatever runs; what is connected to has none.
#[tokio::test]
async fn leases() {
    let client = Memory::new();
    let sandbox = client.create().await.unwrap();
    let id = sandbox.id().to_owned();
    let second = sandbox.clone();
    sandbox.spawn("while :; do sleep 0.01; done").background().await.unwrap();
    drop(client.connect(&id).await.unwrap());
    drop(sandbox);
    assert_eq!(client.list().await.unwrap().len(), 1);
    drop(second);
    assert!(client.list().await.unwrap().is_empty());

    let sandbox = client.create().await.unwrap();
    let id = sandbox.id().to_owned();
    sandbox.detach().await.unwrap();
    drop(sandbox);
    let info = &client.list().await.unwrap()[0];
    assert_eq!((&info.id, info.detached), (&id, true));
    assert!(client.destroy(&id).await.unwrap());
    assert!(!client.destroy(&id).await.unwrap());
}

/// Time that tests stop is the time of the ttl.
#[tokio::test(start_paused = true)]
async fn ttl() {
    let client = Memory::new();
    let sandbox = client.create().ttl(Duration::from_millis(1500)).await.unwrap();
    sandbox.detach().await.unwrap();
    let process = sandbox.spawn("sleep 1000").background().await.unwrap();
    let mut process = process.attach().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1400)).await;
    assert_eq!(client.list().await.unwrap()[0].ttl_left, Some(Duration::from_millis(100)));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(client.list().await.unwrap().is_empty());
    assert_eq!(process.wait().await.unwrap().status, ExitStatus::SandboxGone);
    assert_eq!(sandbox.exec("true").await.unwrap_err().kind(), ErrorKind::SandboxGone);

    // Five minutes where nothing is said, and as long as asked for.
    let sandbox = client.create().await.unwrap();
    let long = client.create().ttl(Duration::MAX).await.unwrap();
    tokio::time::sleep(Duration::from_secs(299)).await;
    assert!(sandbox.exec("true").await.is_ok());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(sandbox.exec("true").await.is_err());
    assert!(long.exec("true").await.is_ok());
}

/// When `destroy` returns, nothing runs, also where a command never gives way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn destroy_waits() {
    let sandbox = Memory::new().create().await.unwrap();
    let process = sandbox.spawn("awk 'BEGIN{while(1)x++}'").background().await.unwrap();
    let mut process = process.attach().await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let start = std::time::Instant::now();
    sandbox.destroy().await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    assert_eq!(process.wait().await.unwrap().status, ExitStatus::SandboxGone);
}

/// B152: one name, one sandbox, however many ask at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn names() {
    let client = Memory::new();
    let creates = (0..10).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.create().name("one").await.unwrap() })
    });
    let mut sandboxes = Vec::new();
    for create in creates.collect::<Vec<_>>() {
        sandboxes.push(create.await.unwrap());
    }
    assert_eq!(sandboxes.iter().filter(|sandbox| sandbox.is_new()).count(), 1);
    assert!(sandboxes.iter().all(|sandbox| sandbox.id() == sandboxes[0].id()));
    assert_eq!(client.list().await.unwrap().len(), 1);
    // Another client is another world.
    assert!(Memory::new().create().name("one").await.unwrap().is_new());
    sandboxes[0].destroy().await.unwrap();
    assert!(client.create().name("one").await.unwrap().is_new());
}

#[tokio::test]
async fn labels() {
    let client = Memory::new();
    let a = client.create().labels([("team", "a"), ("x", "1")]).await.unwrap();
    let _b = client.create().labels([("team", "b"), ("x", "1")]).await.unwrap();
    let found = client.list_with(&Labels::from([("team", "a")])).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((&*found[0].id, &found[0].labels), (a.id(), &Labels::from([("team", "a"), ("x", "1")])));
    assert_eq!(client.list_with(&Labels::from([("x", "1")])).await.unwrap().len(), 2);
    assert!(client.list_with(&Labels::from([("x", "2")])).await.unwrap().is_empty());
}

/// A snapshot holds disk, env and labels, outlives its source, and both go their ways.
#[tokio::test]
async fn snapshots() {
    let client = Memory::new();
    let source = client.create().env([("Q", "cuda>=9.1"), ("R", "r")]).labels([("a", "1")]).await.unwrap();
    says(&source, "mkdir -p d/empty; echo one > d/f; ln -s f d/link; ln -s /usr/bin/env d/env; chmod 700 d")
        .await;
    let snapshot = source.snapshots().create(Some("first")).await.unwrap();
    says(&source, "echo two > d/f").await;
    source.destroy().await.unwrap();

    let listed = client.snapshots().await.unwrap();
    assert_eq!(listed, std::slice::from_ref(&snapshot));
    assert_eq!(listed[0].name.as_deref(), Some("first"));
    let restored = client.create().from_snapshot(snapshot.id.clone()).env([("R", "new")]).await.unwrap();
    // B107, B144
    let text =
        says(&restored, "cat d/link; readlink d/link d/env; ls -d d/empty; stat -c %a d; echo \"$Q $R\"")
            .await;
    assert_eq!(text, "one\nf\n/usr/bin/env\nd/empty\n700\ncuda>=9.1 new\n");
    says(&restored, "echo three > d/f").await;
    let again = client.create().from_snapshot(snapshot.id.clone()).await.unwrap();
    assert_eq!(says(&again, "cat d/f").await, "one\n");
    assert_eq!(client.list_with(&Labels::from([("a", "1")])).await.unwrap().len(), 2);

    client.delete_snapshot(&snapshot.id).await.unwrap();
    assert_eq!(client.delete_snapshot(&snapshot.id).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(client.snapshots().await.unwrap().is_empty());
    let error = client.create().from_snapshot(snapshot.id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// A fork has the disk, and not the processes.
#[tokio::test]
async fn forks() {
    let client = Memory::new();
    let source = client.create().env([("A", "1")]).await.unwrap();
    says(&source, "echo same > f").await;
    source.spawn("sleep 100").background().await.unwrap();
    let forks: Vec<_> = source.fork(2).await.unwrap().into_iter().map(Result::unwrap).collect();
    says(&source, "echo other > f").await;
    for fork in &forks {
        assert_eq!(says(fork, "cat f; echo $A").await, "same\n1\n");
        // Only what was just run here.
        assert_eq!(fork.processes().await.unwrap().len(), 1);
    }
    says(&forks[0], "echo mine > f").await;
    assert_eq!(says(&forks[1], "cat f").await, "same\n");
    drop(forks);
    assert_eq!(client.list().await.unwrap().len(), 1);
}

/// B158, B171: what is not there is refused before anything is made.
#[tokio::test]
async fn refusals() {
    let client = Memory::new();
    let any = client.clone().into_any();
    let open = any.create(Spec::new().network(Network::open())).await.unwrap_err();
    assert_eq!(open.capability(), Some(Capability::EgressOpen));
    let some = any.create(Spec::new().network("example.com:443".parse().unwrap())).await.unwrap_err();
    assert_eq!(some.kind(), ErrorKind::NotSupported);
    let strong = client.create().require_isolation(Isolation::Container).await.unwrap_err();
    assert_eq!(strong.kind(), ErrorKind::NotSupported);
    assert!(client.list().await.unwrap().is_empty());
    assert!(client.create().network(Network::deny()).require_isolation(Isolation::Process).await.is_ok());
}

#[tokio::test]
async fn uris() {
    let open = |uri: &str| (PROVIDER.open)(uri.parse().unwrap());
    let client = open("memory://?disk=1M").unwrap();
    let sandbox = client.create(Spec::new()).await.unwrap();
    let error = sandbox.files().unwrap().write("big", vec![0; 2 << 20]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(client.downcast::<Memory>().is_some());
    for wrong in ["memory://x", "memory://?size=1", "memory://?disk=much"] {
        assert_eq!(open(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong}");
    }
    let small =
        Memory::configured(Config::new().with_disk(1 << 20)).create().disk(4_u64 << 20).await.unwrap();
    assert!(small.files().write("big", vec![0; 2 << 20]).await.is_ok());
}

/// Every row of the table has an answer with a reason, and the raw objects are there.
#[tokio::test]
async fn native() {
    let client = Memory::new();
    let sandbox = client.create().await.unwrap();
    assert_eq!(client.native().ids(), [sandbox.id()]);
    let files = sandbox.native().file_system();
    let passwd = files.read_file(std::path::Path::new("/etc/passwd")).await.unwrap();
    assert_eq!(passwd, sandbox.files().read("/etc/passwd").await.unwrap());
}
