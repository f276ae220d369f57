//! Decoding of uploaded audio files, against files of real encoders (`assets/audio`).

mod broken;
mod cut;
mod formats;
mod hostile;
mod support;
mod wav;
