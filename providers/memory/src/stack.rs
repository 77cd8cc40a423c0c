//! A stack of its own for the interpreter.
//!
//! The interpreter calls itself for each level of a script, and an unoptimised build takes up to 100 KiB for
//! one. The stacks of threads are too small for that, and one that overflows takes the whole process with it.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};

use capbox_core::provider::{Error, ErrorKind, Result};
use corosensei::stack::DefaultStack;

/// The size of the stack in bytes. Only what is used takes memory.
const SIZE: usize = 64 << 20;
/// How deep the next level may begin, in bytes: what one level takes comes on top of that.
const DEEPEST: usize = 24 << 20;

/// What is said where a script nests too deep.
pub(crate) const TOO_DEEP: &str = "commands nest too deep";

thread_local! {
    /// Where the stack begins on which this thread polls.
    static BEGIN: Cell<usize> = const { Cell::new(0) };
}

/// True where the next level of a script would come too near to the end of the stack.
pub(crate) fn is_deep() -> bool {
    let begin = BEGIN.get();
    begin != 0 && begin.saturating_sub(here()) > DEEPEST
}

/// An address in the current frame.
#[inline(never)]
fn here() -> usize {
    let local = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&local)).addr()
}

/// A future that is polled, and dropped, on a stack of its own.
pub(crate) struct OnStack<F> {
    stack: DefaultStack,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> OnStack<F> {
    pub(crate) fn new(future: F) -> Result<Self> {
        let stack = DefaultStack::new(SIZE).map_err(|error| {
            Error::new(ErrorKind::Provider, "there is no room for the stack of a command").with_source(error)
        })?;
        Ok(Self { stack, future: Some(Box::pin(future)) })
    }
}

impl<F: Future> Future for OnStack<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { stack, future } = self.get_mut();
        let future = future.as_mut().expect("it is there until it is dropped");
        on(stack, || future.as_mut().poll(context))
    }
}

impl<F> Drop for OnStack<F> {
    fn drop(&mut self) {
        let future = self.future.take();
        on(&mut self.stack, || drop(future));
    }
}

fn on<T>(stack: &mut DefaultStack, call: impl FnOnce() -> T) -> T {
    let before = BEGIN.get();
    let done = corosensei::on_stack(stack, || {
        BEGIN.set(here());
        call()
    });
    BEGIN.set(before);
    done
}
