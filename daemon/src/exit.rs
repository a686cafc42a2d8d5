//! Exit codes of the daemons: 0 stopped as asked, 1 failed while running, 2 wrong usage (from clap), 78 bad configuration.
//! A supervisor starts a daemon again after any but the last two.

use std::process::ExitCode;

use crate::config::ConfigError;
use crate::{logging, stderr};

/// Exit code of a daemon that failed while it ran.
pub const RUNTIME_FAILURE: u8 = 1;
/// Exit code of a daemon whose configuration cannot be used (`EX_CONFIG`).
pub const BAD_CONFIGURATION: u8 = 78;

/// Why a daemon ends before it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Something failed while running.
    #[error("{0:#}")]
    Runtime(#[from] anyhow::Error),
}

impl Failure {
    /// The exit code of this failure. A configuration that could not be read at this moment counts as a failure at run time.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Config(error) if error.may_pass() => RUNTIME_FAILURE,
            Failure::Config(_) => BAD_CONFIGURATION,
            Failure::Runtime(_) => RUNTIME_FAILURE,
        }
    }
}

/// Turns the result of a daemon's main function into its exit code. A failure is written to stderr directly, because logging
/// may not have started yet. The last lines of the log get a bounded time to be written.
pub fn report(program: &str, result: Result<(), Failure>) -> ExitCode {
    let code = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            logging::tell_error(&format!("{program}: {failure}"));
            ExitCode::from(failure.code())
        }
    };
    stderr::flush();
    code
}

/// Ends the process as one that failed, after the same bounded wait for the last lines of the log.
pub(crate) fn at_once() -> ! {
    stderr::flush();
    std::process::exit(i32::from(RUNTIME_FAILURE))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_bad_configuration_and_a_failure_have_their_own_codes() {
        let config = Failure::from(ConfigError::Value("x".into()));
        let runtime = Failure::from(anyhow::anyhow!("no disk").context("failed to open the store"));
        assert_eq!((config.code(), runtime.code()), (78, 1));
        assert_eq!(runtime.to_string(), "failed to open the store: no disk");
    }

    #[test]
    fn transient_config_read_errors_exit_as_runtime_failures() {
        let code = |errno: Errno| {
            let failed = ConfigError::Read { path: "blkin.toml".into(), source: errno.into() };
            Failure::from(failed).code()
        };
        for passing in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO, Errno::STALE, Errno::TIMEDOUT] {
            assert_eq!(code(passing), RUNTIME_FAILURE, "{passing}");
        }
        for lasting in [Errno::NOENT, Errno::ACCESS, Errno::ISDIR, Errno::NOTDIR, Errno::LOOP] {
            assert_eq!(code(lasting), BAD_CONFIGURATION, "{lasting}");
        }
    }
}
