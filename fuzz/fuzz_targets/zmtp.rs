//! cargo-fuzz's source to `fuzz/targets/zmtp.rs`.
#![no_main]

#[path = "../targets/zmtp.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::zmtp(data));
