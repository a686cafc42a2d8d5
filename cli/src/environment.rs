//! What variables of the environment say for options that were not given.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error, Parser};

/// Reads a command line. An empty variable counts as none. What is said of wrong usage speaks of options that somebody wrote, and
/// of a variable by its own name.
///
/// # Errors
/// A help that was asked for, or wrong usage.
pub fn parse<A: Parser>(words: &[OsString]) -> Result<A, Error> {
    // As they are first: a help lists empty variables, too.
    let read_words = match read::<A>(words, |argument| argument) {
        Err(error) if option(&error).is_some() => read(words, unless_empty),
        read => read,
    };
    read_words.map_err(|refused| {
        let wrong_in_words = read::<A>(words, |argument| argument.env(None::<&str>)).err();
        naming_variable::<A>(with_usage_of(wrong_in_words.as_ref(), refused), wrong_in_words.as_ref())
    })
}

/// What was refused, with the usage of the same error without variables: clap shows an option that one of them gives as if it
/// were required.
fn with_usage_of(wrong_in_words: Option<&Error>, mut refused: Error) -> Error {
    let same = wrong_in_words.filter(|error| error.kind() == refused.kind());
    if let Some(usage) = same.and_then(|error| error.get(ContextKind::Usage)) {
        refused.insert(ContextKind::Usage, usage.clone());
    }
    refused
}

/// What was refused; if that was what a variable says and no option, the variable is named.
fn naming_variable<A: Parser>(mut refused: Error, wrong_in_words: Option<&Error>) -> Error {
    if wrong_in_words.and_then(option) != option(&refused)
        && let Some(variable) = option(&refused).and_then(|option| variable_of(A::command(), &option))
    {
        refused.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    refused
}

/// What the words say, and the variables that options have once `heed` has had them.
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

/// The option whose value an error is about, as clap writes it.
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
