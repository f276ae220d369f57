//! Envelopes of the client protocol (`docs/design/sdk.md`), as far as sorting them needs: `[version, kind, request, …]`.

const VERSION: u8 = 1;
const CANCEL: u8 = 34;

/// The request that an envelope belongs to. `None` if it does not begin like one; what else is wrong with it is its
/// reader's to find.
pub fn call_of(envelope: &[u8]) -> Option<u64> {
    let (&mark, rest) = envelope.split_first()?;
    if mark != 0x95 {
        return None;
    }
    let (_version, rest) = unsigned(rest)?;
    let (_kind, rest) = unsigned(rest)?;
    unsigned(rest).map(|(request, _)| request)
}

/// `[1, CANCEL, request, 0, {}]`
pub fn cancel(request: u64) -> Vec<u8> {
    let mut envelope = vec![0x95, VERSION, CANCEL, 0xcf];
    envelope.extend(request.to_be_bytes());
    envelope.extend([0, 0x80]);
    envelope
}

/// An unsigned integer of msgpack, and what follows.
fn unsigned(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (&mark, rest) = bytes.split_first()?;
    let length = match mark {
        0..=0x7f => return Some((mark.into(), rest)),
        0xcc => 1,
        0xcd => 2,
        0xce => 4,
        0xcf => 8,
        _ => return None,
    };
    let (number, rest) = rest.split_at_checked(length)?;
    let number = number
        .iter()
        .fold(0, |high, byte| high << 8 | u64::from(*byte));
    Some((number, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_of_a_request_is_read() {
        for (bytes, request) in [
            (&[7][..], 7),
            (&[0xcc, 200], 200),
            (&[0xcd, 1, 0], 256),
            (&[0xce, 0, 1, 0, 0], 65_536),
            (&[0xcf, 1, 0, 0, 0, 0, 0, 0, 0], 1 << 56),
        ] {
            let envelope = [&[0x95, 1, 35], bytes, &[0, 0x80]].concat();
            assert_eq!(call_of(&envelope), Some(request));
            for cut in 0..3 + bytes.len() {
                assert_eq!(call_of(&envelope[..cut]), None, "{cut} bytes");
            }
        }
        assert_eq!(call_of(&[0x94, 1, 35, 7, 0]), None);
        assert_eq!(call_of(&[0x95, 1, 35, 0xff, 0, 0x80]), None);
    }

    #[test]
    fn a_cancel_is_addressed_to_its_call() {
        for request in [1, 127, 128, u64::MAX] {
            assert_eq!(call_of(&cancel(request)), Some(request));
        }
    }
}
