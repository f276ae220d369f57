//! The audio endpoints over real sockets and a backend that does what a test's script says.

mod answers;
mod mistakes;
mod support;
mod waiting;
