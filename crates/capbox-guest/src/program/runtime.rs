//! What a program needs that has no libc: an entry point, memory functions, a heap, an end.

use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::ptr::null_mut;

use crate::sys::{self, nr};

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16", // as the calling convention wants it at a call
    "call {start}",
    "ud2",
    start = sym start,
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "mov x29, xzr",
    "mov x30, xzr",
    "mov x0, sp",
    "bl {start}",
    "brk #1",
    start = sym start,
);

/// The kernel leaves the number of arguments on the stack, and the arguments behind it.
unsafe extern "C" fn start(stack: *const usize) -> ! {
    // SAFETY: as many pointers to strings as the number says, which stay where they are.
    let arguments: Vec<&CStr> =
        unsafe { (1..=stack.read()).map(|at| CStr::from_ptr(stack.add(at).read() as *const _)).collect() };
    sys::exit_group(crate::main(&arguments))
}

/// A panic is a bug. The sandbox must not outlive its supervisor, and with process 1 the kernel ends it all.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit_group(101)
}

// The precompiled `alloc` was built with unwinding and names these two; with `panic=abort` nothing calls them.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    sys::exit_group(101)
}

/// Memory functions, which the compiler calls by name. Assembly, since a loop here would be compiled into a call
/// of itself.
#[cfg(target_arch = "x86_64")]
mod memory {
    use core::arch::asm;

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
        // SAFETY: the caller passes valid, disjoint ranges; the direction flag is clear by the ABI.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags));
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
        if (to as usize).wrapping_sub(from as usize) >= len {
            // SAFETY: copying upwards is right when the target does not begin within the source.
            return unsafe { memcpy(to, from, len) };
        }
        // SAFETY: downwards from the last byte; the direction flag is put back.
        unsafe {
            asm!("std", "rep movsb", "cld",
                inout("rcx") len => _,
                inout("rdi") to.wrapping_add(len).wrapping_sub(1) => _,
                inout("rsi") from.wrapping_add(len).wrapping_sub(1) => _,
                options(nostack));
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
        // SAFETY: the caller passes a valid range.
        unsafe {
            asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte as u8,
                options(nostack, preserves_flags));
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
        for at in 0..len {
            // SAFETY: within the ranges that the caller passes; volatile, so that it stays a loop.
            let (a, b) = unsafe { (a.add(at).read_volatile(), b.add(at).read_volatile()) };
            if a != b {
                return i32::from(a) - i32::from(b);
            }
        }
        0
    }
}

/// As above; volatile accesses keep the loops loops.
#[cfg(not(target_arch = "x86_64"))]
mod memory {
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
        for at in 0..len {
            // SAFETY: within the ranges that the caller passes.
            unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
        if (to as usize).wrapping_sub(from as usize) >= len {
            // SAFETY: copying upwards is right when the target does not begin within the source.
            return unsafe { memcpy(to, from, len) };
        }
        for at in (0..len).rev() {
            // SAFETY: within the ranges that the caller passes.
            unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
        for at in 0..len {
            // SAFETY: within the range that the caller passes.
            unsafe { to.add(at).write_volatile(byte as u8) };
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
        for at in 0..len {
            // SAFETY: within the ranges that the caller passes.
            let (a, b) = unsafe { (a.add(at).read_volatile(), b.add(at).read_volatile()) };
            if a != b {
                return i32::from(a) - i32::from(b);
            }
        }
        0
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    unsafe extern "C" {
        fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32;
    }
    // SAFETY: the same contract.
    unsafe { memcmp(a, b, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(string: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: the caller passes a string that ends with a NUL; volatile, so that it stays a loop.
    while unsafe { string.add(len).read_volatile() } != 0 {
        len += 1;
    }
    len
}

const SMALLEST: usize = 16;
const CLASSES: usize = 12; // 16 bytes to 32 KiB
const LARGEST: usize = SMALLEST << (CLASSES - 1);
const CHUNK: usize = 64 * 1024;

/// Free lists by power of two, fed from chunks; larger blocks are mappings of their own and go back at once.
struct Heap(UnsafeCell<State>);

struct State {
    free: [*mut u8; CLASSES],
    chunk: *mut u8,
    left: usize,
}

// SAFETY: the program has one thread. A `clone` child that shares the memory runs while this one is held, and does
// not allocate.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap(UnsafeCell::new(State { free: [null_mut(); CLASSES], chunk: null_mut(), left: 0 }));

fn class_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SMALLEST);
    (size <= LARGEST).then(|| (size.next_power_of_two() / SMALLEST).trailing_zeros() as usize)
}

fn map(len: usize) -> *mut u8 {
    // Private anonymous memory: PROT_READ|WRITE, MAP_PRIVATE|ANONYMOUS.
    // SAFETY: asks for new memory and touches none.
    unsafe { raw!(nr::MMAP, 0, len, 3, 0x22, -1isize, 0) }.map_or(null_mut(), |address| address as *mut u8)
}

#[allow(clippy::cast_ptr_alignment)] // blocks are at least 16 bytes long and aligned
// SAFETY: blocks come from fresh mappings or from the list of their class, are as large and as aligned as their
// class (chunks are page-aligned and carved in powers of two, rounded up), and are on one list or in use, not both.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            return map(layout.size());
        };
        // SAFETY: one thread, and no reference outlives this function.
        let state = unsafe { &mut *self.0.get() };
        let block = state.free[class];
        if !block.is_null() {
            // SAFETY: a free block holds the next one's address in its first word.
            state.free[class] = unsafe { block.cast::<*mut u8>().read() };
            return block;
        }
        let size = SMALLEST << class;
        if state.left < state.chunk.align_offset(size) + size {
            // What is left of the old chunk is given up: less than one block.
            state.chunk = map(CHUNK);
            state.left = if state.chunk.is_null() { 0 } else { CHUNK };
            if state.left == 0 {
                return null_mut();
            }
        }
        let padding = state.chunk.align_offset(size);
        let block = state.chunk.wrapping_add(padding);
        state.chunk = block.wrapping_add(size);
        state.left -= padding + size;
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is that of `alloc`.
        let block = unsafe { self.alloc(layout) };
        // Mappings of their own are new, and zero without being touched.
        if !block.is_null() && class_of(layout).is_some() {
            // SAFETY: a block of at least this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            // SAFETY: a mapping of its own, of this length.
            let _ = unsafe { raw!(nr::MUNMAP, block, layout.size()) };
            return;
        };
        // SAFETY: one thread; the block is the caller's to give back, and at least a word long.
        unsafe {
            let state = &mut *self.0.get();
            block.cast::<*mut u8>().write(state.free[class]);
            state.free[class] = block;
        }
    }
}
