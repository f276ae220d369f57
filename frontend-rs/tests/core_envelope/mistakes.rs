//! Other versions, and bytes that no worker should send.

use super::*;

#[test]
fn understands_what_another_version_of_a_worker_sends() {
    assert_eq!(decode(&golden("foreign_unknown_kind")).unwrap().body, None);
    assert_eq!(
        body("foreign_nil_body"),
        FromWorker::Bye { why: String::new() }
    );
    for name in ["foreign_unknown_keys", "foreign_nil_is_missing"] {
        assert_eq!(
            body(name),
            FromWorker::Stats(Stats {
                running: 2,
                ..Stats::default()
            }),
            "{name}"
        );
    }
}

#[test]
fn names_what_is_wrong() {
    assert_eq!(decode(&[]), Err(DecodeError::Truncated));
    assert_eq!(
        decode(&[0x95, 2, 4, 5, 0, 0x80]),
        Err(DecodeError::Version(2))
    );
    assert_eq!(
        decode(&[0x95, 1, 7, 5, 0, 0x80]),
        Err(DecodeError::Missing("reason"))
    );
    assert_eq!(
        decode(&[0x95, 1, 11, 0, 0, 0x80, 0]),
        Err(DecodeError::Trailing)
    );
    assert_eq!(
        decode(&vec![0; MAX_BYTES + 1]),
        Err(DecodeError::TooLong(MAX_BYTES + 1))
    );
    let mut nested = vec![0x95, 1, 9, 0, 0, 0x81, 0xa1, b'x'];
    nested.extend([0x91; 5000]);
    nested.push(1);
    assert_eq!(decode(&nested), Err(DecodeError::TooDeep));
    // A length that promises four billion rows, with nothing behind it.
    let lie = [
        0x95, 1, 5, 0, 0, 0x81, 0xa4, b'r', b'o', b'w', b's', 0xdd, 0xff, 0xff, 0xff, 0xff,
    ];
    assert_eq!(decode(&lie), Err(DecodeError::Truncated));
}

fn any_golden() -> impl Strategy<Value = Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/envelope");
    let files: Vec<Vec<u8>> = std::fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "bin"))
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    assert!(files.len() > 10);
    proptest::sample::select(files)
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn damaged_envelopes_never_panic(
        mut bytes in any_golden(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = decode(&bytes);
    }
}
