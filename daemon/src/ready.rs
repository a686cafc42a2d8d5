//! Announces that the daemon serves: by a file, which appears complete or not at all, and to systemd, if systemd started the
//! daemon (`Type=notify`).

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use sd_notify::NotifyState;
use serde::Serialize;

/// Writes `content` as JSON to `path`, if there is one, atomically; then tells systemd.
///
/// # Errors
/// When the file cannot be written beside its final path, or not renamed to it, or when systemd cannot be told: it would
/// assume that the daemon never became ready.
pub fn announce(path: Option<&Path>, content: &impl Serialize) -> anyhow::Result<()> {
    if let Some(path) = path {
        write_to(path, content)
            .with_context(|| format!("failed to write the ready file {}", path.display()))?;
    }
    sd_notify::notify(&[NotifyState::Ready])
        .context("failed to tell systemd that the daemon is ready ($NOTIFY_SOCKET)")
}

/// Asks systemd for this much time to stop, plus a margin. How long the daemon may need depends on its configuration, which
/// the unit file does not know.
pub fn ask_for_time_to_end(time: Duration) {
    const MARGIN: Duration = Duration::from_secs(10);
    let time = u32::try_from((time + MARGIN).as_micros()).unwrap_or(u32::MAX);
    if let Err(error) = sd_notify::notify(&[NotifyState::ExtendTimeoutUsec(time)]) {
        tracing::warn!("failed to ask systemd ($NOTIFY_SOCKET) for more time to stop: {error}");
    }
}

fn write_to(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(content).map_err(io::Error::other)?;
    text.push(b'\n');
    let temporary = temporary_beside(path)?;
    // Left by an earlier process with this id, or a link that somebody placed to make us write elsewhere.
    let _ = std::fs::remove_file(&temporary);
    let mut file = std::fs::File::create_new(&temporary)?;
    file.write_all(&text)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)
}

fn temporary_beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::other("the ready file needs a file name"))?;
    let mut temporary = name.to_os_string();
    temporary.push(format!(".{}.tmp", std::process::id()));
    Ok(path.with_file_name(temporary))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_file_holds_the_json_and_no_temporary_file_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready.json");
        announce(Some(&path), &serde_json::json!({"http": "127.0.0.1:9411"})).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"http\":\"127.0.0.1:9411\"}\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn symlink_at_the_temporary_path_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, precious) = (folder.path().join("ready.json"), folder.path().join("precious"));
        std::fs::write(&precious, "mine").unwrap();
        std::os::unix::fs::symlink(&precious, temporary_beside(&path).unwrap()).unwrap();
        announce(Some(&path), &1).unwrap();
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "mine");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n");
    }

    #[test]
    fn unwritable_ready_file_is_named_in_the_error() {
        let error = format!("{:#}", announce(Some(Path::new("/nowhere/ready.json")), &0).unwrap_err());
        assert!(error.starts_with("failed to write the ready file /nowhere/ready.json: "), "{error}");
        announce(None, &0).unwrap();
    }
}
