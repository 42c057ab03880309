//! The calls that need more than the right to read, written down a second time: a call whose right
//! changes by mistake fails the tests of rights, which compare this with what a daemon denies.

/// Calls that change retention or Salt's behaviour.
pub const ADMIN: [&str; 20] = [
    "save_reg",
    "zeromq_events",
    "zeromq_ignored",
    "clean_old_jobs",
    "event_send",
    "store_prune",
    "store_hold",
    "store_accept_loss",
    "reactor_replay",
    "reactor_lease",
    "token_create",
    "token_list",
    "token_revoke",
    "consumer_pin",
    "sink_test",
    "sink_pause",
    "sink_resume",
    "sink_seek",
    "sink_retry",
    "sink_drop",
];

/// Calls that add history.
pub const WRITE: [&str; 16] = [
    "prep_jid",
    "save_load",
    "save_minions",
    "returner",
    "update_endtime",
    "event_return",
    "consumer_create",
    "consumer_next",
    "consumer_ack",
    "consumer_nack",
    "consumer_release",
    "consumer_seek",
    "consumer_pause",
    "consumer_resume",
    "consumer_delete",
    "sinks_check",
];
