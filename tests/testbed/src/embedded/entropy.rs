//! The operating system's randomness, replaced by a seed for threads that run a simulation.
//!
//! Hash maps of the standard library and tokio's choice among ready branches are seeded from it, so without this a seed would
//! not give the same history twice. It works where a program is linked with the libc that Rust's standard library calls (Linux); elsewhere
//! simulations still run, but a failing seed may have to be tried more than once.

use std::cell::Cell;

use super::chance::Chance;

thread_local! {
    static SEEDED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on this thread draws its randomness from the seed. To be called first thing on a new thread.
pub fn seed(seed: u64) {
    SEEDED.set(Some(seed));
}

/// The next bytes for this thread, if it was seeded.
fn draw(bytes: &mut [u8]) -> bool {
    // A thread that is being torn down has no seed any more.
    let Ok(Some(state)) = SEEDED.try_with(Cell::get) else {
        return false;
    };
    let mut chance = Chance::new(state);
    for piece in bytes.chunks_mut(8) {
        let drawn = chance.draw().to_le_bytes();
        piece.copy_from_slice(&drawn[..piece.len()]);
    }
    SEEDED.set(Some(chance.draw()));
    true
}

/// Stands in for libc's function of this name, which the standard library looks up when it wants random bytes.
///
/// # Safety
/// `buffer` must be valid for writes of `length` bytes, as the C function demands.
#[cfg(target_os = "linux")]
#[allow(
    unsafe_code,
    reason = "the C function's signature is part of what it replaces"
)]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(
    buffer: *mut std::ffi::c_void,
    length: usize,
    flags: std::ffi::c_uint,
) -> isize {
    // SAFETY: the caller promises a valid buffer of this length.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    if draw(bytes) {
        return length as isize;
    }
    let flags = rustix::rand::GetRandomFlags::from_bits_retain(flags);
    match rustix::rand::getrandom(bytes, flags) {
        Ok(filled) => filled as isize,
        // Callers fall back to /dev/urandom.
        Err(_) => -1,
    }
}
