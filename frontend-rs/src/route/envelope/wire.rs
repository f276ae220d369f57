//! Checked reads of msgpack in a byte slice. Nothing is allocated for what is skipped, and no length is believed before
//! the bytes behind it are seen.

use rmp::Marker;

/// How deep a value that nobody knows may nest.
const MAX_UNKNOWN_DEPTH: usize = 8;

/// Why bytes from a peer are not an envelope. The offset counts from the end of the envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the envelope ends before its last value")]
    Truncated,
    #[error("{0} was expected, {1} bytes before the end")]
    Expected(&'static str, usize),
    #[error("an unknown value nests deeper than {MAX_UNKNOWN_DEPTH}")]
    TooDeep,
    #[error("bytes follow the envelope")]
    Trailing,
    #[error("envelope version {0}; this side speaks {VERSION}", VERSION = super::VERSION)]
    Version(u64),
    #[error("'{0}' is missing")]
    Missing(&'static str),
    #[error("envelope of {0} bytes is beyond the limit")]
    TooLong(usize),
}

/// A value, or the head of one. Text is not checked to be UTF-8.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Any<'a> {
    Nil,
    Flag(bool),
    Uint(u64),
    Int(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    Array(usize),
    Map(usize),
}

/// A cursor over received bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Trailing)
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn marker(&mut self) -> Result<Marker, DecodeError> {
        Ok(Marker::from_u8(self.take(1)?[0]))
    }

    /// A big-endian unsigned integer of `width` bytes.
    fn number(&mut self, width: usize) -> Result<u64, DecodeError> {
        Ok(self
            .take(width)?
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// A length field; every item behind it takes at least one byte, so a longer one is a lie.
    fn length(&mut self, width: usize) -> Result<usize, DecodeError> {
        let length = usize::try_from(self.number(width)?).map_err(|_| DecodeError::Truncated)?;
        if length > self.rest.len() {
            return Err(DecodeError::Truncated);
        }
        Ok(length)
    }

    fn expected<T>(&self, what: &'static str) -> Result<T, DecodeError> {
        Err(DecodeError::Expected(what, self.rest.len()))
    }

    /// Consumes a `nil` if one is next.
    pub fn nil(&mut self) -> bool {
        let nil = self.rest.first() == Some(&Marker::Null.to_u8());
        if nil {
            self.rest = &self.rest[1..];
        }
        nil
    }

    pub fn array(&mut self) -> Result<usize, DecodeError> {
        match self.marker()? {
            Marker::FixArray(length) => Ok(usize::from(length)),
            Marker::Array16 => self.length(2),
            Marker::Array32 => self.length(4),
            _ => self.expected("an array"),
        }
    }

    pub fn map(&mut self) -> Result<usize, DecodeError> {
        match self.marker()? {
            Marker::FixMap(length) => Ok(usize::from(length)),
            Marker::Map16 => self.length(2),
            Marker::Map32 => self.length(4),
            _ => self.expected("a map"),
        }
    }

    pub fn uint(&mut self) -> Result<u64, DecodeError> {
        match self.marker()? {
            Marker::FixPos(value) => Ok(u64::from(value)),
            Marker::U8 => self.number(1),
            Marker::U16 => self.number(2),
            Marker::U32 => self.number(4),
            Marker::U64 => self.number(8),
            _ => self.expected("an unsigned integer"),
        }
    }

    pub fn uint32(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.uint()?).or_else(|_| self.expected("an integer below 2^32"))
    }

    pub fn float(&mut self) -> Result<f32, DecodeError> {
        match self.rest.first().map(|byte| Marker::from_u8(*byte)) {
            Some(Marker::F32) => {
                self.marker()?;
                Ok(f32::from_bits(self.number(4)? as u32))
            }
            Some(Marker::F64) => {
                self.marker()?;
                Ok(f64::from_bits(self.number(8)?) as f32)
            }
            Some(Marker::FixNeg(value)) => {
                self.marker()?;
                Ok(f32::from(value))
            }
            _ => self
                .uint()
                .map(|value| value as f32)
                .or_else(|_| self.expected("a number")),
        }
    }

    pub fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.marker()? {
            Marker::True => Ok(true),
            Marker::False => Ok(false),
            _ => self.expected("true or false"),
        }
    }

    pub fn text(&mut self) -> Result<&'a str, DecodeError> {
        let length = match self.marker()? {
            Marker::FixStr(length) => usize::from(length),
            Marker::Str8 => self.length(1)?,
            Marker::Str16 => self.length(2)?,
            Marker::Str32 => self.length(4)?,
            _ => return self.expected("a string"),
        };
        std::str::from_utf8(self.take(length)?).or_else(|_| self.expected("UTF-8"))
    }

    /// The bytes of one value of any kind, however deep it nests; what is in it is not looked at.
    pub fn raw(&mut self) -> Result<&'a [u8], DecodeError> {
        let from = self.rest;
        let mut left = 1u64;
        while left > 0 {
            left = left - 1 + self.shallow()? as u64;
        }
        Ok(&from[..from.len() - self.rest.len()])
    }

    /// One value of any kind; of an array or map only its length: what it holds comes next.
    pub fn any(&mut self) -> Result<Any<'a>, DecodeError> {
        let signed =
            |bits: u64, width: u32| Any::Int((bits << (64 - width)) as i64 >> (64 - width));
        Ok(match self.marker()? {
            Marker::Null => Any::Nil,
            Marker::True => Any::Flag(true),
            Marker::False => Any::Flag(false),
            Marker::FixPos(value) => Any::Uint(u64::from(value)),
            Marker::U8 => Any::Uint(self.number(1)?),
            Marker::U16 => Any::Uint(self.number(2)?),
            Marker::U32 => Any::Uint(self.number(4)?),
            Marker::U64 => Any::Uint(self.number(8)?),
            Marker::FixNeg(value) => Any::Int(i64::from(value)),
            Marker::I8 => signed(self.number(1)?, 8),
            Marker::I16 => signed(self.number(2)?, 16),
            Marker::I32 => signed(self.number(4)?, 32),
            Marker::I64 => signed(self.number(8)?, 64),
            Marker::F32 => Any::Float(f64::from(f32::from_bits(self.number(4)? as u32))),
            Marker::F64 => Any::Float(f64::from_bits(self.number(8)?)),
            Marker::FixStr(length) => Any::Text(self.take(usize::from(length))?),
            Marker::Str8 => Any::Text(self.counted(1)?),
            Marker::Str16 => Any::Text(self.counted(2)?),
            Marker::Str32 => Any::Text(self.counted(4)?),
            Marker::Bin8 => Any::Bytes(self.counted(1)?),
            Marker::Bin16 => Any::Bytes(self.counted(2)?),
            Marker::Bin32 => Any::Bytes(self.counted(4)?),
            Marker::FixArray(length) => Any::Array(usize::from(length)),
            Marker::Array16 => Any::Array(self.length(2)?),
            Marker::Array32 => Any::Array(self.length(4)?),
            Marker::FixMap(length) => Any::Map(usize::from(length)),
            Marker::Map16 => Any::Map(self.length(2)?),
            Marker::Map32 => Any::Map(self.length(4)?),
            _ => return self.expected("a value that JSON has"),
        })
    }

    fn counted(&mut self, width: usize) -> Result<&'a [u8], DecodeError> {
        let length = self.length(width)?;
        self.take(length)
    }

    /// Steps over one value of any kind.
    pub fn skip(&mut self) -> Result<(), DecodeError> {
        self.skip_nested(MAX_UNKNOWN_DEPTH)
    }

    fn skip_nested(&mut self, depth: usize) -> Result<(), DecodeError> {
        let inner = self.shallow()?;
        if inner > 0 && depth == 0 {
            return Err(DecodeError::TooDeep);
        }
        for _ in 0..inner {
            self.skip_nested(depth - 1)?;
        }
        Ok(())
    }

    /// Steps over one value, but not over what an array or map holds: how many values that are.
    fn shallow(&mut self) -> Result<usize, DecodeError> {
        let bytes = match self.marker()? {
            Marker::FixArray(length) => return Ok(usize::from(length)),
            Marker::Array16 => return self.length(2),
            Marker::Array32 => return self.length(4),
            Marker::FixMap(length) => return Ok(2 * usize::from(length)),
            Marker::Map16 => return self.length(2).map(|n| 2 * n),
            Marker::Map32 => return self.length(4).map(|n| 2 * n),
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => {
                0
            }
            Marker::U8 | Marker::I8 => 1,
            Marker::U16 | Marker::I16 | Marker::FixExt1 => 2,
            Marker::FixExt2 => 3,
            Marker::U32 | Marker::I32 | Marker::F32 => 4,
            Marker::FixExt4 => 5,
            Marker::U64 | Marker::I64 | Marker::F64 => 8,
            Marker::FixExt8 => 9,
            Marker::FixExt16 => 17,
            Marker::FixStr(length) => usize::from(length),
            Marker::Str8 | Marker::Bin8 => self.length(1)?,
            Marker::Str16 | Marker::Bin16 => self.length(2)?,
            Marker::Str32 | Marker::Bin32 => self.length(4)?,
            Marker::Ext8 => self.length(1)? + 1,
            Marker::Ext16 => self.length(2)? + 1,
            Marker::Ext32 => self.length(4)? + 1,
            Marker::Reserved => return self.expected("a msgpack value"),
        };
        self.take(bytes).map(|_| 0)
    }

    /// Reads a map field by field: `field` gets each key whose value is not `nil`, and must read or skip that value.
    pub fn fields(
        &mut self,
        mut field: impl FnMut(&str, &mut Self) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        for _ in 0..self.map()? {
            let key = self.text()?;
            if !self.nil() {
                field(key, self)?;
            }
        }
        Ok(())
    }
}
