//! `keys`: makes OpenSSH's `authorized_keys` of the operator's list of keys.
//!
//! A line of the list is a public key as `ssh-keygen` writes it. Before it there may be the permissions of its owner, with commas, and the
//! guests that it is bound to:
//!
//! ```text
//! ssh-ed25519 AAAAC3Nz... alice
//! view,console guests=web,mail ssh-ed25519 AAAAC3Nz... bob
//! ```
//!
//! A key without permissions has all of them, and one without guests is for all guests and the machine. Each key gets the agent's shell as its forced command, and nothing else: no
//! forwarding, no other program. So a line that is not understood gives no key at all.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use control::{Permissions, is_name};
use sha2::{Digest as _, Sha256};

/// Kinds of keys that sshd takes.
const KINDS: [&str; 5] =
    ["ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa"];

/// Permissions by their names, with commas between them.
///
/// # Errors
/// A name is none.
pub fn permissions(names: &str) -> Result<Permissions, String> {
    names.split(',').try_fold(Permissions::empty(), |all, name| match Permissions::called(name) {
        Some(one) => Ok(all | one),
        None => {
            let known = Permissions::NAMED.map(|(known, _)| known).join(", ");
            Err(format!("no permission `{name}`; there are: {known}"))
        }
    })
}

/// Makes the file for sshd. `program`: the agent's path. Returns the file, and what is wrong with which line.
#[must_use]
pub fn authorized(list: &str, program: &str) -> (String, Vec<String>) {
    let (mut file, mut mistakes) = (String::new(), Vec::new());
    for (number, line) in list.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match key(line) {
            Ok(Line { allowed, guests, kind, key, name }) => {
                let guests = guests.map_or(String::new(), |guests| format!(" --guests={guests}"));
                // The agent does not end by a broken connection before it has reported that.
                file.push_str(&format!(
                    "restrict,pty,command=\"trap '' HUP; exec {program} shell --allow {allowed}{guests} --key {name}\" \
                     {kind} {key} {name}\n"
                ));
            }
            Err(why) => mistakes.push(format!("line {number}: {why}")),
        }
    }
    (file, mistakes)
}

/// A line of the list.
struct Line<'a> {
    /// The permissions, with commas between them.
    allowed: String,
    /// The guests that it is bound to, with commas between them.
    guests: Option<&'a str>,
    kind: &'a str,
    key: &'a str,
    /// The owner's name.
    name: String,
}

/// Guests by their names, with commas between them.
///
/// # Errors
/// A name is none.
pub fn guests(names: &str) -> Result<Vec<String>, String> {
    match names.split(',').find(|name| !is_name(name)) {
        None => Ok(names.split(',').map(str::to_owned).collect()),
        Some(name) => Err(format!("`{name}` is no name of a guest: 1 to 32 letters, digits, `-`, `_` and `.`")),
    }
}

/// The fingerprint of a public key, as `ssh-keygen -l` prints it without the size and the comment: `SHA256:… (ED25519)`.
///
/// # Errors
/// The text is not a public key in OpenSSH's form: its kind, and the key in base64.
pub fn fingerprint(public_key: &str) -> Result<String, String> {
    let mut words = public_key.split_whitespace();
    let (Some(kind), Some(key)) = (words.next(), words.next()) else { return Err("it is not a public key".to_owned()) };
    let short = match kind {
        "ssh-ed25519" => "ED25519",
        "ssh-rsa" => "RSA",
        ecdsa if KINDS.contains(&ecdsa) => "ECDSA",
        _ => return Err(format!("it is of no kind that is known: {}", KINDS.join(", "))),
    };
    let key = STANDARD.decode(key).map_err(|error| format!("it is not in base64: {error}"))?;
    Ok(format!("SHA256:{} ({short})", STANDARD_NO_PAD.encode(Sha256::digest(key))))
}

/// Reads a line.
fn key(line: &str) -> Result<Line<'_>, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let usage = || format!("expected `[PERMISSIONS] [guests=NAMES] KIND KEY NAME` with one of {}", KINDS.join(", "));
    let at = words.iter().position(|word| KINDS.contains(word)).ok_or_else(usage)?;
    let (options, rest) = words.split_at(at);
    let [kind, key, name @ ..] = rest else { return Err(usage()) };
    let (allowed, bound) = match *options {
        [] => (Permissions::all(), None),
        [option] => match option.strip_prefix("guests=") {
            Some(names) => (Permissions::all(), Some(names)),
            None => (permissions(option)?, None),
        },
        [allowed, option] => (permissions(allowed)?, Some(option.strip_prefix("guests=").ok_or_else(usage)?)),
        _ => return Err(usage()),
    };
    bound.map_or(Ok(Vec::new()), guests)?;
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    if key.is_empty() || !key.bytes().all(is_base64) {
        return Err("the key is not in base64".to_owned());
    }
    // It is in a command line: only harmless characters stay.
    let harmless = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
    let name: String = name.concat().chars().filter(harmless).take(control::MAX_WHO).collect();
    let name = if name.is_empty() || name.starts_with('-') { format!("key{name}") } else { name };
    let names: Vec<&str> =
        Permissions::NAMED.iter().filter(|(_, one)| allowed.contains(*one)).map(|(name, _)| *name).collect();
    if names.is_empty() {
        return Err("the key has no permission".to_owned());
    }
    Ok(Line { allowed: names.join(","), guests: bound, kind, key, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys and what `ssh-keygen -lf` says of them.
    #[test]
    fn fingerprints_are_those_of_ssh_keygen() {
        for (key, expected) in [
            (
                "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGBKS1wNCFmu4p0xf+K6BHOTO8/AhZ7JCdtFR1tg2vpF x",
                "SHA256:OzlprdmD0SRJMwdl3APzwPy7jmoZsibNQhX5yJMi6gQ (ED25519)",
            ),
            (
                "ecdsa-sha2-nistp256 \
                 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBGQluCEp/HTjcwo8WrWaEP7xbfnC0GkT1UKOMFXqAOmVdPTXKBtwyyd6zQeffP48pLmeqR1O3mIwQBShMKcWm4w=",
                "SHA256:f6zZs2/AZsp/9xol43Li2Ybo/STW1V8Y0Y8eRkv5w9U (ECDSA)",
            ),
        ] {
            assert_eq!(fingerprint(key).as_deref(), Ok(expected));
        }
        for wrong in ["", "ssh-ed25519", "ssh-dss AAAA", "ssh-ed25519 A%", "-----BEGIN OPENSSH PRIVATE KEY-----"] {
            assert!(fingerprint(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_key_has_the_shell_as_its_only_command() {
        let list = "# keys\n\nssh-ed25519 AAAAC3Nz alice@host\n view,console  ssh-ed25519 AAAAC3N0 bob and bob\n";
        let (file, mistakes) = authorized(list, "/usr/bin/sidecore-agent");
        assert_eq!(mistakes, [""; 0]);
        assert_eq!(
            file,
            "restrict,pty,command=\"trap '' HUP; exec /usr/bin/sidecore-agent shell --allow \
             view,profile,console,capture,operate --key alice@host\" ssh-ed25519 AAAAC3Nz alice@host\n\
             restrict,pty,command=\"trap '' HUP; exec /usr/bin/sidecore-agent shell --allow view,console --key bobandbob\" \
             ssh-ed25519 AAAAC3N0 bobandbob\n"
        );
    }

    #[test]
    fn a_key_may_be_bound_to_guests() {
        let list = "guests=web,mail ssh-ed25519 AAAA anna\nview guests=-x.y_1 ssh-ed25519 AAAA bob\n";
        let (file, mistakes) = authorized(list, "p");
        assert_eq!(mistakes, [""; 0]);
        let lines: Vec<_> = file.lines().collect();
        assert!(
            lines[0].contains("--allow view,profile,console,capture,operate --guests=web,mail --key anna\" "),
            "{file}"
        );
        assert!(lines[1].contains("p shell --allow view --guests=-x.y_1 --key bob\" "), "{file}");
        assert_eq!(guests("web,mail"), Ok(vec!["web".to_owned(), "mail".to_owned()]));
    }

    #[test]
    fn a_line_that_is_not_understood_gives_no_key() {
        for line in [
            "command=\"sh\" ssh-ed25519 AAAA x",
            "root ssh-ed25519 AAAA x",
            "ssh-ed25519",
            "ssh-dss AAAA x",
            "ssh-ed25519 AA\"AA x",
            "view,, ssh-ed25519 AAAA x",
            "guests= ssh-ed25519 AAAA x",
            "guests=a,,b ssh-ed25519 AAAA x",
            "guests=a\";b ssh-ed25519 AAAA x",
            "guests=a view ssh-ed25519 AAAA x",
            "view guests=a guests=b ssh-ed25519 AAAA x",
            "view operate ssh-ed25519 AAAA x",
        ] {
            let (file, mistakes) = authorized(line, "p");
            assert_eq!((file.as_str(), mistakes.len()), ("", 1), "{line}");
        }
    }

    #[test]
    fn a_name_cannot_become_a_word_of_the_command() {
        let (file, _) = authorized("view ssh-ed25519 AAAA \";reboot;--allow operate\n-x", "p");
        assert!(file.contains("--allow view --key reboot--allowoperate\" "), "{file}");
        let (file, _) = authorized("view ssh-ed25519 AAAA --allow=operate", "p");
        assert!(file.contains("--key key--allowoperate\" "), "{file}");
    }
}
