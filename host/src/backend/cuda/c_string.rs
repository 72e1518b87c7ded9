//! Texts that libraries written in C give.

use std::ffi::CStr;
use std::ffi::c_char;

/// A text that a library gives; empty where it gives none.
///
/// # Safety
/// It is a null pointer, or leads to bytes that end with a zero and stay.
pub(super) unsafe fn string_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
