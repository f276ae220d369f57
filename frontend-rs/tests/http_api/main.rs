//! The HTTP surface over real sockets, with a scripted backend in the workers' place.

mod support;

mod chat;
mod completions;
mod connections;
mod disconnect;
mod errors;
mod health_under_load;
mod limits;
mod loading;
mod logprobs;
mod parameters;
mod reasoning;
mod slow_client;
mod speech;
mod streaming;
mod template_goldens;
mod text;
mod transcripts;
