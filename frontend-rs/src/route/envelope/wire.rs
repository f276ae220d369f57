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

    /// Steps over one value of any kind.
    pub fn skip(&mut self) -> Result<(), DecodeError> {
        self.skip_nested(MAX_UNKNOWN_DEPTH)
    }

    fn skip_nested(&mut self, depth: usize) -> Result<(), DecodeError> {
        let inner = match self.marker()? {
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => {
                0
            }
            Marker::U8 | Marker::I8 => return self.take(1).map(drop),
            Marker::U16 | Marker::I16 | Marker::FixExt1 => return self.take(2).map(drop),
            Marker::FixExt2 => return self.take(3).map(drop),
            Marker::U32 | Marker::I32 | Marker::F32 => return self.take(4).map(drop),
            Marker::FixExt4 => return self.take(5).map(drop),
            Marker::U64 | Marker::I64 | Marker::F64 => return self.take(8).map(drop),
            Marker::FixExt8 => return self.take(9).map(drop),
            Marker::FixExt16 => return self.take(17).map(drop),
            Marker::FixStr(length) => return self.take(usize::from(length)).map(drop),
            Marker::Str8 | Marker::Bin8 => {
                return self.length(1).and_then(|n| self.take(n)).map(drop)
            }
            Marker::Str16 | Marker::Bin16 => {
                return self.length(2).and_then(|n| self.take(n)).map(drop)
            }
            Marker::Str32 | Marker::Bin32 => {
                return self.length(4).and_then(|n| self.take(n)).map(drop)
            }
            Marker::Ext8 => return self.length(1).and_then(|n| self.take(n + 1)).map(drop),
            Marker::Ext16 => return self.length(2).and_then(|n| self.take(n + 1)).map(drop),
            Marker::Ext32 => return self.length(4).and_then(|n| self.take(n + 1)).map(drop),
            Marker::FixArray(length) => usize::from(length),
            Marker::Array16 => self.length(2)?,
            Marker::Array32 => self.length(4)?,
            Marker::FixMap(length) => 2 * usize::from(length),
            Marker::Map16 => 2 * self.length(2)?,
            Marker::Map32 => 2 * self.length(4)?,
            Marker::Reserved => return self.expected("a msgpack value"),
        };
        if inner > 0 && depth == 0 {
            return Err(DecodeError::TooDeep);
        }
        for _ in 0..inner {
            self.skip_nested(depth - 1)?;
        }
        Ok(())
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
