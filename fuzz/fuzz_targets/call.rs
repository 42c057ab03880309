//! cargo-fuzz's source to `fuzz/targets/call.rs`.
#![no_main]

#[path = "../targets/call.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::call(data));
