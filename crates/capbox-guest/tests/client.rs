//! The client against relays that lie.

#![cfg(feature = "client")]

use std::time::Duration;

use capbox_guest::client::{Admitted, Error, Relay};
use capbox_guest::proto::{Event, Exec, Info, Request};
use capbox_guest::stream::{HEADER, Header, Kind, MAX_DATA, PREAMBLE, WINDOW};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// A client, and the other end of its stream once both have greeted.
async fn connected() -> (Relay, DuplexStream) {
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(ours);
    theirs.write_all(&PREAMBLE).await.expect("greet");
    let relay = Relay::connect(reader, writer).await.expect("a relay");
    let mut preamble = [0; PREAMBLE.len()];
    theirs.read_exact(&mut preamble).await.expect("the client's greeting");
    (relay, theirs)
}

async fn frame(stream: &mut DuplexStream) -> Option<(Header, Vec<u8>)> {
    let mut header = [0; HEADER];
    stream.read_exact(&mut header).await.ok()?;
    let header = Header::decode(header)?;
    let mut payload = vec![0; header.len];
    stream.read_exact(&mut payload).await.ok()?;
    Some((header, payload))
}

async fn send(stream: &mut DuplexStream, kind: Kind, channel: u32, payload: &[u8]) {
    let header = Header { kind, len: payload.len(), channel }.encode();
    // The client may have given up.
    let _ = stream.write_all(&[&header[..], payload].concat()).await;
}

#[tokio::test]
async fn another_version_is_told_apart() {
    let (ours, mut theirs) = tokio::io::duplex(1024);
    let (reader, writer) = tokio::io::split(ours);
    theirs.write_all(b"capbox\x09\x00").await.expect("greet");
    assert_eq!(Relay::connect(reader, writer).await.err(), Some(Error::Version));
}

#[tokio::test]
async fn a_relay_that_cannot_work_says_why() {
    let (relay, mut theirs) = connected().await;
    let event = Event::BootFailed { step: "try".into(), errno: 1 };
    send(&mut theirs, Kind::Broken, 0, &event.encode()).await;
    assert_eq!(relay.lost().await, Error::Relay { step: "try".into(), errno: 1 });
}

#[tokio::test]
async fn answers_to_what_was_not_asked_end_it() {
    let huge = Header { kind: Kind::Request, len: 1 << 20, channel: 1 }.encode();
    for bytes in [
        Header { kind: Kind::Close, len: 0, channel: 1 }.encode(),
        Header { kind: Kind::Data, len: 0, channel: 9 }.encode(),
        [0xff; HEADER],
        huge,
    ] {
        let (relay, mut theirs) = connected().await;
        theirs.write_all(&bytes).await.expect("lie");
        assert!(matches!(relay.lost().await, Error::Lost { .. }));
        assert!(matches!(relay.info().await, Err(Error::Lost { admitted: Admitted::No, .. })));
    }
}

#[tokio::test]
async fn an_answer_of_another_kind_is_no_answer() {
    let (relay, mut theirs) = connected().await;
    let asked = tokio::spawn(async move { relay.info().await });
    let (header, payload) = frame(&mut theirs).await.expect("a request");
    assert_eq!((header.kind, Request::decode(&payload)), (Kind::Request, Ok(Request::Info)));
    send(&mut theirs, Kind::Event, header.channel, &Event::Done.encode()).await;
    assert!(matches!(asked.await.expect("no panic"), Err(Error::Lost { .. })));
}

#[tokio::test]
async fn a_stream_that_ends_says_what_may_have_been_done() {
    let (relay, mut theirs) = connected().await;
    let asked = tokio::spawn(async move { relay.info().await });
    frame(&mut theirs).await.expect("a request");
    drop(theirs);
    let answer = asked.await.expect("no panic");
    assert!(matches!(answer, Err(Error::Lost { admitted: Admitted::Unknown, .. })), "{answer:?}");
}

#[tokio::test]
async fn what_exceeds_the_window_ends_it() {
    let (relay, mut theirs) = connected().await;
    let starting = tokio::spawn({
        let relay = relay.clone();
        async move { relay.exec(Exec { argv: vec!["yes".into()], ..Exec::default() }).await }
    });
    let (header, _) = frame(&mut theirs).await.expect("a request");
    send(&mut theirs, Kind::Event, header.channel, &Event::Started { job: "j".into() }.encode()).await;
    let mut job = starting.await.expect("no panic").expect("a job");
    // Nobody reads, so there is no more room than this.
    for _ in 0..=WINDOW as usize / MAX_DATA + 1 {
        send(&mut theirs, Kind::Data, header.channel, &vec![0; MAX_DATA]).await;
    }
    assert!(matches!(relay.lost().await, Error::Lost { .. }));
    let mut got = 0;
    let error = loop {
        match job.next().await {
            Ok(Some(capbox_guest::client::Event::Output { data, .. })) => got += data.len(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(got <= WINDOW as usize + MAX_DATA, "{got}");
    assert!(matches!(error, Error::Lost { admitted: Admitted::Yes, .. }));
}

#[tokio::test]
async fn what_is_dropped_is_closed_and_its_rest_forgotten() {
    let (relay, mut theirs) = connected().await;
    let asked = tokio::spawn({
        let relay = relay.clone();
        async move { tokio::time::timeout(Duration::from_millis(20), relay.info()).await }
    });
    let (header, _) = frame(&mut theirs).await.expect("a request");
    assert!(asked.await.expect("no panic").is_err());
    let (closed, _) = frame(&mut theirs).await.expect("a close");
    assert_eq!((closed.kind, closed.channel), (Kind::Close, header.channel));
    // What was on its way meanwhile is no lie.
    send(&mut theirs, Kind::Event, header.channel, &Event::Info { info: Info::default() }.encode()).await;
    send(&mut theirs, Kind::Close, header.channel, &[]).await;
    let asked = tokio::spawn(async move { relay.info().await });
    let (header, _) = frame(&mut theirs).await.expect("another request");
    send(&mut theirs, Kind::Event, header.channel, &Event::Info { info: Info::default() }.encode()).await;
    assert_eq!(asked.await.expect("no panic"), Ok(Info::default()));
}
