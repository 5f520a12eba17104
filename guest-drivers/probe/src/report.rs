//! The form of a test, the ways to fail it, and the report of its result.

use bare::console;

/// Why a test failed.
pub type Why = heapless::String<112>;

/// The result of a test.
pub type Outcome = Result<(), Why>;

/// A test.
pub struct Test {
    /// Module and function.
    pub name: &'static str,
    /// The test.
    pub run: fn() -> Outcome,
}

/// Writes a line for scripts: the members of a JSON object.
macro_rules! say {
    ($($text:tt)*) => { bare::console::line(format_args!("SC {{{}}}", format_args!($($text)*))) };
}
pub(crate) use say;

/// Ends the test with a message unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            let mut why = $crate::report::Why::new();
            // A longer text is cut off. Its beginning says enough.
            let _ = core::fmt::Write::write_fmt(&mut why, format_args!($($text)*));
            return Err(why);
        }
    };
}
pub(crate) use ensure;

/// Ends the test with a message unless two values are equal.
macro_rules! equal {
    ($left:expr, $right:expr, $what:literal $(, $($argument:expr),+)?) => {{
        let (left, right) = ($left, $right);
        $crate::report::ensure!(left == right, concat!($what, ": {:x?}, expected {:x?}"), $($($argument,)+)? left, right);
    }};
}
pub(crate) use equal;

/// A table of tests: modules and the functions in them.
macro_rules! table {
    ($($module:ident { $($name:ident,)+ })+) => {
        &[$($($crate::report::Test {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: $module::$name,
        },)+)+]
    };
}
pub(crate) use table;

/// Reports the result of a test.
pub fn ended(name: &str, outcome: &Outcome) {
    match outcome {
        Ok(()) => {
            console::line(format_args!("test {name} ... ok"));
            say!("\"do\":\"test\",\"name\":\"{name}\",\"passed\":true");
        }
        Err(why) => {
            console::line(format_args!("test {name} ... FAILED {why}"));
            say!("\"do\":\"test\",\"name\":\"{name}\",\"passed\":false,\"why\":\"{why}\"");
        }
    }
}
