//! Environment variables in place of options that were not given.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error, Parser};

/// Parses a command line. An empty variable counts as unset. A usage error names only options that the user wrote; if a variable
/// is at fault, it names the variable.
///
/// # Errors
/// Help text, if it was asked for, or a usage error.
pub fn parse<A: Parser>(words: &[OsString]) -> Result<A, Error> {
    // First with the variables as they are: help lists empty variables, too.
    let read_words = match read::<A>(words, |argument| argument) {
        Err(error) if option(&error).is_some() => read(words, unless_empty),
        read => read,
    };
    read_words.map_err(|refused| {
        let wrong_in_words = read::<A>(words, |argument| argument.env(None::<&str>)).err();
        naming_variable::<A>(with_usage_of(wrong_in_words.as_ref(), refused), wrong_in_words.as_ref())
    })
}

/// The error, with the usage line of the same error without variables: clap shows an option set by a variable as if it were
/// required.
fn with_usage_of(wrong_in_words: Option<&Error>, mut refused: Error) -> Error {
    let same = wrong_in_words.filter(|error| error.kind() == refused.kind());
    if let Some(usage) = same.and_then(|error| error.get(ContextKind::Usage)) {
        refused.insert(ContextKind::Usage, usage.clone());
    }
    refused
}

/// The error, naming the variable instead of the option if the bad value came from a variable.
fn naming_variable<A: Parser>(mut refused: Error, wrong_in_words: Option<&Error>) -> Error {
    if wrong_in_words.and_then(option) != option(&refused)
        && let Some(variable) = option(&refused).and_then(|option| variable_of(A::command(), &option))
    {
        refused.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    refused
}

/// Parses the words, and the variables of the options after `heed` has changed these.
fn read<A: Parser>(words: &[OsString], heed: fn(Arg) -> Arg) -> Result<A, Error> {
    let command = A::command().mut_args(heed).mut_subcommands(|command| command.mut_args(heed));
    A::from_arg_matches(&command.try_get_matches_from(words)?)
}

fn unless_empty(argument: Arg) -> Arg {
    match argument.get_env().and_then(std::env::var_os) {
        Some(text) if text.is_empty() => argument.env(None::<&str>),
        _ => argument,
    }
}

/// The option whose value the error is about, as clap writes it.
fn option(error: &Error) -> Option<String> {
    let named = error.get(ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::ValueValidation);
    named.map(ToString::to_string)
}

fn variable_of(mut command: Command, option: &str) -> Option<String> {
    command.build();
    let arguments = command.get_subcommands().flat_map(Command::get_arguments).chain(command.get_arguments());
    let mut said = arguments.filter(|argument| argument.to_string() == option).filter_map(Arg::get_env);
    said.next().map(|name| name.to_string_lossy().into_owned())
}
