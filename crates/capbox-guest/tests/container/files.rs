//! Files.

use capbox_guest::client::{Error, WriteOptions};

use crate::support::*;

tests! {
    content_survives_the_trip,
}

async fn content_survives_the_trip(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at % 253) as u8).collect();
    relay.write(b"a", &content, &WriteOptions::default()).await?;
    assert!(relay.read(b"/tmp/a", 0, u64::MAX, 1 << 30).await? == content);
    assert_eq!(relay.read(b"a", 10, 5, 100).await?, content[10..15]);
    assert_eq!(relay.read(b"a", 0, 50, 20).await, Err(Error::TooLarge { size: 50, limit: 20 }));
    assert_eq!(relay.read(b"nope", 0, 1, 1).await, Err(Error::File { errno: 2 }));
    assert_eq!(relay.read(b"/tmp", 0, 1, 1).await, Err(Error::File { errno: 21 }));
    let names = |entries: Vec<capbox_guest::proto::Entry>| -> Vec<Vec<u8>> {
        entries.into_iter().map(|entry| entry.name.0).collect()
    };
    assert_eq!(names(relay.list(b"/tmp").await?), [b"a"]);
    relay.write(b"a", b"", &WriteOptions::default()).await?;
    assert_eq!(relay.stat(b"a", false).await?.size, 0);
    Ok(())
}
