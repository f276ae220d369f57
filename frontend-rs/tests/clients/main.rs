//! Clients over shared memory, on real sockets and real arenas.

#[path = "../audio_api/support.rs"]
#[allow(dead_code)]
mod audio;
mod calls;
mod ends;
mod garbage;
mod hearing;
mod pressure;
mod speaking;
mod support;
