//! cargo-fuzz's source to `fuzz/targets/log.rs`.
#![no_main]

#[path = "../targets/log.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::log(data));
