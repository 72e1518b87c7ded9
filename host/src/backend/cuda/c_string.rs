//! Strings from libraries written in C.

use std::ffi::CStr;
use std::ffi::c_char;

/// Copies a string of a library; empty if the pointer is null.
///
/// # Safety
/// The pointer is null, or points to bytes that end with a zero and stay valid.
pub(super) unsafe fn string_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
