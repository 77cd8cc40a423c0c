//! The guest as process 1 of a container, and the client of its relay.
//!
//! Each test runs in namespaces made by hand, with busybox as all there is, and with an engine where
//! `CAPBOX_TEST_DOCKER_HOST` and `CAPBOX_TEST_DOCKER_IMAGE` name one and an image that has a shell.

mod attacks;
mod exec;
mod files;
mod life;
mod support;

use libtest_mimic::{Arguments, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for place in support::places() {
        for test in [exec::tests(), files::tests(), life::tests(), attacks::tests()].concat() {
            trials.push(Trial::test(format!("{}::{}", place.name(), test.name), move || {
                support::run(place, test)
            }));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    support::clean_up();
    conclusion.exit();
}
