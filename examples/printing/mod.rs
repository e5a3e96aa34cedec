//! The standard macros for output, except that a reader who has seen enough (`| head`) ends the program quietly.
//!
//! Absent: anything else. An example is to be read as if it used the standard macros.

#![allow(unused_macros)]

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Prints, or ends the program: well where nobody reads on, with a message where the text is lost.
pub(crate) fn print(text: Arguments<'_>) {
    if let Err(e) = std::io::stdout().lock().write_fmt(text) {
        if e.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        note(format_args!("Error: cannot write to standard output: {e}\n"));
        std::process::exit(1);
    }
}

/// Prints to standard error. Where that cannot be written there is nobody to tell.
pub(crate) fn note(text: Arguments<'_>) {
    let _ = std::io::stderr().lock().write_fmt(text);
}

macro_rules! print {
    ($($text:tt)*) => { crate::printing::print(format_args!($($text)*)) };
}

macro_rules! println {
    ($($text:tt)*) => { crate::printing::print(format_args!("{}\n", format_args!($($text)*))) };
}

macro_rules! eprintln {
    ($($text:tt)*) => { crate::printing::note(format_args!("{}\n", format_args!($($text)*))) };
}
