//! The router over links that record what they are given.

mod ending;
mod sending;
mod speaking;
mod support;
