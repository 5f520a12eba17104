//! Why something of Linux could not be read, and what helps: it is not mounted, is root's, or is hidden in a container. What is
//! missing there is not taken for missing in the machine.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};

use super::{EFI_VARIABLES, Linux, Unreadable};

/// Where Linux mounts what it shows of itself: an entry that is there as soon as it is mounted, and how to mount it.
const MOUNTS: [(&str, &str, &str); 3] = [
    ("dev", "null", "mount -t devtmpfs devtmpfs /dev"),
    ("proc", "version", "mount -t proc proc /proc"),
    ("sys", "kernel", "mount -t sysfs sysfs /sys"),
];
impl Linux {
    /// Why a file or a folder could not be read, and what helps.
    pub(crate) fn explain(&self, path: &str, error: &io::Error) -> Unreadable {
        match error.kind() {
            ErrorKind::PermissionDenied if self.is_root() => {
                Unreadable(format!("this root may not read /{path}: run it outside of a container"))
            }
            ErrorKind::PermissionDenied => Unreadable(format!("only root may read /{path}: run this as root")),
            ErrorKind::NotFound => self.not_there(path),
            _ => Unreadable(format!("/{path}: {error}")),
        }
    }

    /// The same of a file or a folder that is not there or empty.
    pub(super) fn not_there(&self, path: &str) -> Unreadable {
        if let Some(why) = self.not_mounted(path) {
            return why;
        }
        // The uppermost folder of its path that has nothing in it says the most.
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        let lacks = ends.filter_map(|end| path.get(..end)).find_map(|folder| Some((folder, self.lacks(folder)?)));
        let (place, state) = lacks.unwrap_or((path, "is not there"));
        let help = if place == EFI_VARIABLES {
            format!("mount -t efivarfs efivarfs /{EFI_VARIABLES}")
        } else {
            "in a container, run this outside of it; else run this on another Linux, as Debian's live system".to_owned()
        };
        Unreadable(format!("/{place} {state}: {help}"))
    }

    /// How to mount what this path is in, unless that is mounted.
    pub(super) fn not_mounted(&self, path: &str) -> Option<Unreadable> {
        let (top, _) = path.split_once('/')?;
        let (_, entry, mount) = MOUNTS.iter().find(|mount| mount.0 == top)?;
        let is_mounted = self.path(top).join(entry).exists();
        (!is_mounted).then(|| Unreadable(format!("/{top} is not mounted: {mount}")))
    }

    /// What is wrong with a folder or a file that has nothing in it. (/proc and /sys give no sizes of files.)
    fn lacks(&self, path: &str) -> Option<&'static str> {
        let path = self.path(path);
        let is_empty = if path.is_dir() {
            fs::read_dir(path).map(|mut entries| entries.next().is_none())
        } else {
            File::open(path).and_then(|mut file| Ok(file.read(&mut [0])? == 0))
        };
        match is_empty {
            Ok(is_empty) => is_empty.then_some("is empty"),
            Err(error) => (error.kind() == ErrorKind::NotFound).then_some("is not there"),
        }
    }

    /// Whether this program's effective user is 0. In a container such a user may have few of root's rights.
    pub(super) fn is_root(&self) -> bool {
        let status = fs::read_to_string(self.path("proc/self/status")).unwrap_or_default();
        // The real user comes first.
        let effective = |line: &str| line.strip_prefix("Uid:")?.split_whitespace().nth(1).map(|user| user == "0");
        status.lines().find_map(effective).unwrap_or(false)
    }

    /// What is not in this folder is not in the machine: the folder is there, and has something in it.
    ///
    /// # Errors
    /// The folder is not there, is empty or cannot be read, so that nobody knows.
    pub fn lists(&self, folder: &str) -> Result<(), Unreadable> {
        let mut entries = fs::read_dir(self.path(folder)).map_err(|e| self.explain(folder, &e))?;
        entries.next().map(drop).ok_or_else(|| self.not_there(folder))
    }

    /// What was read at a path. `None`: there is none, as this folder, which would have it, has others.
    pub(super) fn if_there<T>(&self, folder: &str, path: &str, read: io::Result<T>) -> Result<Option<T>, Unreadable> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == ErrorKind::NotFound => self.lists(folder).map(|()| None),
            Err(error) => Err(self.explain(path, &error)),
        }
    }
}
