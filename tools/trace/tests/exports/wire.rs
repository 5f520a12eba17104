//! A decoder of Protocol Buffers' wire format, written from its documentation ("Encoding"), and of the few messages of
//! Perfetto that matter here. It shares nothing with the crate that encodes, so that a wrong field number is found.

/// A field: its number and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub number: u64,
    pub value: Value<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a varint that ends");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("a varint of more than 10 bytes");
}

/// The fields of a message.
pub fn fields(mut bytes: &[u8]) -> Vec<Field<'_>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut bytes)),
            2 => {
                let len = usize::try_from(varint(&mut bytes)).unwrap();
                let (value, rest) = bytes.split_at_checked(len).expect("a length within the message");
                bytes = rest;
                Value::Bytes(value)
            }
            other => panic!("wire type {other} is used by none of these messages"),
        };
        all.push(Field { number: key >> 3, value });
    }
    all
}

/// A message, of which each field is looked up by its number.
pub struct Message<'a>(Vec<Field<'a>>);

impl<'a> Message<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(fields(bytes))
    }

    pub fn number(&self, field: u64) -> Option<u64> {
        self.0.iter().find(|f| f.number == field).map(|f| match f.value {
            Value::Varint(value) => value,
            Value::Bytes(_) => panic!("field {field} is no number"),
        })
    }

    pub fn all(&self, field: u64) -> Vec<&'a [u8]> {
        let of = self.0.iter().filter(|f| f.number == field);
        of.map(|f| match f.value {
            Value::Bytes(value) => value,
            Value::Varint(_) => panic!("field {field} has no bytes"),
        })
        .collect()
    }

    pub fn bytes(&self, field: u64) -> Option<&'a [u8]> {
        self.all(field).first().copied()
    }

    pub fn text(&self, field: u64) -> Option<&'a str> {
        self.bytes(field).map(|bytes| str::from_utf8(bytes).expect("UTF-8"))
    }
}
