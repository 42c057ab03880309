//! cargo-fuzz's source to `fuzz/targets/sls_yaml.rs`.
#![no_main]

#[path = "../targets/sls_yaml.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::sls_yaml(data));
