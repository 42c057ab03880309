//! cargo-fuzz's source to `fuzz/targets/redact.rs`.
#![no_main]

#[path = "../targets/redact.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::redact(data));
