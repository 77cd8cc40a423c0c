//! Beginnings and ends.

use std::time::{Duration, SystemTime};

use capbox_guest::client::{Admitted, Error};
use capbox_guest::proto::Refusal;

use crate::support::{
    Container, Outcome, Place, Sandbox, contain, print, run_job, sandbox, sh, tests, until,
};

tests! {
    b146_what_is_owned_ends_with_its_owner,
    what_is_detached_lives_on_until_it_is_destroyed,
    a_ttl_ends_it,
    what_is_never_booted_ends,
    what_may_be_started_by_itself_waits_longer,
    it_is_told_once_what_it_is_for,
    an_engine_can_stop_it,
    a_lost_stream_says_what_may_have_been_done,
    orphans_are_reaped,
    several_clients_do_not_own,
}

async fn b146_what_is_owned_ends_with_its_owner(place: Place) -> Outcome {
    let Sandbox { relay, process: mut process_, mut container } = sandbox(place).await?;
    relay.spawn(sh("trap '' TERM HUP; setsid sleep 300 & sleep 300")).await?;
    drop(relay);
    container.ended().await?;
    process_.wait().await?;
    Ok(())
}

async fn what_is_detached_lives_on_until_it_is_destroyed(place: Place) -> Outcome {
    let Sandbox { relay, mut process, mut container } = sandbox(place).await?;
    relay.detach().await?;
    drop(relay);
    process.wait().await?;
    let (relay, mut process) = container.relay().await?;
    let info = relay.info().await?;
    assert_eq!((info.owned, &info.id[..], &info.version[..]), (false, &b"test"[..], &b"7"[..]));
    assert_eq!(print(&relay, "echo alive").await?, "alive\n");
    relay.destroy().await?;
    container.ended().await?;
    process.wait().await?;
    assert!(matches!(relay.info().await, Err(Error::Lost { admitted: Admitted::No, .. })));
    Ok(())
}

async fn a_ttl_ends_it(place: Place) -> Outcome {
    let mut sandbox = sandbox(place).await?;
    sandbox.relay.set_ttl(60_000).await?;
    let left = sandbox.relay.info().await?.ttl_left;
    assert!((1..=60_000).contains(&left), "{left}");
    sandbox.relay.set_ttl(200).await?;
    sandbox.container.ended().await?;
    assert!(matches!(sandbox.relay.lost().await, Error::Lost { .. }));
    Ok(())
}

async fn what_is_never_booted_ends(place: Place) -> Outcome {
    let mut container = Container::start(place, &["--boot-within", "1500"]).await?;
    container.ended().await?;
    Ok(())
}

async fn what_may_be_started_by_itself_waits_longer(place: Place) -> Outcome {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let until = (now + Duration::from_mins(1)).as_millis().to_string();
    let container = Container::start(place, &["--boot-within", "1", "--until", &until]).await?;
    let (relay, _process) = container.relay().await?;
    relay.boot(contain()).await?;
    assert_eq!(print(&relay, "echo alive").await?, "alive\n");
    Ok(())
}

async fn it_is_told_once_what_it_is_for(place: Place) -> Outcome {
    let container = Container::start(place, &[]).await?;
    let (relay, _process) = container.relay().await?;
    assert_eq!(relay.info().await, Err(Error::Refused(Refusal::Unbooted)));
    assert!(matches!(relay.exec(sh("true")).await, Err(Error::Refused(Refusal::Unbooted))));
    let mut nobody = contain();
    nobody.user = "nobody-here".into();
    assert!(matches!(relay.boot(nobody).await, Err(Error::Relay { errno: 2, .. })));
    relay.boot(contain()).await?;
    assert_eq!(relay.boot(contain()).await, Err(Error::Refused(Refusal::Invalid)));
    Ok(())
}

async fn an_engine_can_stop_it(place: Place) -> Outcome {
    let mut sandbox = sandbox(place).await?;
    sandbox.relay.spawn(sh("trap '' TERM; sleep 300")).await?;
    sandbox.container.stop().await?;
    sandbox.container.ended().await?;
    Ok(())
}

async fn a_lost_stream_says_what_may_have_been_done(place: Place) -> Outcome {
    let mut sandbox = sandbox(place).await?;
    sandbox.relay.detach().await?;
    let mut job = sandbox.relay.exec(sh("sleep 300")).await?;
    sandbox.container.kill_relays().await?;
    assert!(matches!(job.next().await, Err(Error::Lost { admitted: Admitted::Yes, .. })));
    assert!(matches!(sandbox.relay.info().await, Err(Error::Lost { admitted: Admitted::No, .. })));
    sandbox.process.wait().await?;
    // What was in the foreground has ended with it.
    let (relay, _process) = sandbox.container.relay().await?;
    until(async || print(&relay, "pidof sleep; true").await.is_ok_and(|text| text.is_empty())).await;
    Ok(())
}

async fn orphans_are_reaped(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    run_job(&sandbox.relay, sh("for i in $(seq 50); do (setsid sh -c 'true' & ) ; done")).await?;
    let zombies = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l";
    until(async || print(&sandbox.relay, zombies).await.is_ok_and(|text| text == "0\n")).await;
    Ok(())
}

async fn several_clients_do_not_own(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let (other, mut process) = sandbox.container.relay().await?;
    assert_eq!(print(&other, "echo two").await?, "two\n");
    drop(other);
    process.wait().await?;
    assert_eq!(print(&sandbox.relay, "echo one").await?, "one\n");
    Ok(())
}
