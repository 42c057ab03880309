//! cargo-fuzz's source to `fuzz/targets/salt_event.rs`.
#![no_main]

#[path = "../targets/salt_event.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::salt_event(data));
