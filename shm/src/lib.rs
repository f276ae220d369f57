//! The shared-memory arena between the front end and its peers.
