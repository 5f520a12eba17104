//! Reads keys from the terminal, in a thread of its own.

use std::sync::mpsc::SyncSender;
use std::thread;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, read as next};

use super::message::Message;
use crate::ui::Key;

/// Starts the thread. It ends with the program.
pub fn read(messages: SyncSender<Message>) {
    thread::spawn(move || {
        loop {
            let message = match next() {
                Ok(Event::Key(event)) => match key(event) {
                    Some(key) => Message::Key(key),
                    None => continue,
                },
                Ok(Event::Resize(..)) => Message::Resized,
                Ok(_) => continue,
                Err(_) => Message::Hangup,
            };
            let last = matches!(message, Message::Hangup);
            if messages.send(message).is_err() || last {
                return;
            }
        }
    });
}

fn key(event: KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    let control = event.modifiers.contains(KeyModifiers::CONTROL);
    Some(match event.code {
        KeyCode::Char('c') if control => Key::Interrupt,
        KeyCode::Char(_) if control => return None,
        KeyCode::Char(character) => Key::Char(character),
        KeyCode::Tab => Key::Next,
        KeyCode::BackTab => Key::Previous,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}
