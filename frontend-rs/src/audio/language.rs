//! The languages of Whisper: codes and English names.

/// Code and lower-case English name, in the order of Whisper's language tokens (the last came with large-v3).
pub const LANGUAGES: [(&str, &str); 100] = [
    ("en", "english"),
    ("zh", "chinese"),
    ("de", "german"),
    ("es", "spanish"),
    ("ru", "russian"),
    ("ko", "korean"),
    ("fr", "french"),
    ("ja", "japanese"),
    ("pt", "portuguese"),
    ("tr", "turkish"),
    ("pl", "polish"),
    ("ca", "catalan"),
    ("nl", "dutch"),
    ("ar", "arabic"),
    ("sv", "swedish"),
    ("it", "italian"),
    ("id", "indonesian"),
    ("hi", "hindi"),
    ("fi", "finnish"),
    ("vi", "vietnamese"),
    ("he", "hebrew"),
    ("uk", "ukrainian"),
    ("el", "greek"),
    ("ms", "malay"),
    ("cs", "czech"),
    ("ro", "romanian"),
    ("da", "danish"),
    ("hu", "hungarian"),
    ("ta", "tamil"),
    ("no", "norwegian"),
    ("th", "thai"),
    ("ur", "urdu"),
    ("hr", "croatian"),
    ("bg", "bulgarian"),
    ("lt", "lithuanian"),
    ("la", "latin"),
    ("mi", "maori"),
    ("ml", "malayalam"),
    ("cy", "welsh"),
    ("sk", "slovak"),
    ("te", "telugu"),
    ("fa", "persian"),
    ("lv", "latvian"),
    ("bn", "bengali"),
    ("sr", "serbian"),
    ("az", "azerbaijani"),
    ("sl", "slovenian"),
    ("kn", "kannada"),
    ("et", "estonian"),
    ("mk", "macedonian"),
    ("br", "breton"),
    ("eu", "basque"),
    ("is", "icelandic"),
    ("hy", "armenian"),
    ("ne", "nepali"),
    ("mn", "mongolian"),
    ("bs", "bosnian"),
    ("kk", "kazakh"),
    ("sq", "albanian"),
    ("sw", "swahili"),
    ("gl", "galician"),
    ("mr", "marathi"),
    ("pa", "punjabi"),
    ("si", "sinhala"),
    ("km", "khmer"),
    ("sn", "shona"),
    ("yo", "yoruba"),
    ("so", "somali"),
    ("af", "afrikaans"),
    ("oc", "occitan"),
    ("ka", "georgian"),
    ("be", "belarusian"),
    ("tg", "tajik"),
    ("sd", "sindhi"),
    ("gu", "gujarati"),
    ("am", "amharic"),
    ("yi", "yiddish"),
    ("lo", "lao"),
    ("uz", "uzbek"),
    ("fo", "faroese"),
    ("ht", "haitian creole"),
    ("ps", "pashto"),
    ("tk", "turkmen"),
    ("nn", "nynorsk"),
    ("mt", "maltese"),
    ("sa", "sanskrit"),
    ("lb", "luxembourgish"),
    ("my", "myanmar"),
    ("bo", "tibetan"),
    ("tl", "tagalog"),
    ("mg", "malagasy"),
    ("as", "assamese"),
    ("tt", "tatar"),
    ("haw", "hawaiian"),
    ("ln", "lingala"),
    ("ha", "hausa"),
    ("ba", "bashkir"),
    ("jw", "javanese"),
    ("su", "sundanese"),
    ("yue", "cantonese"),
];

/// Other names and codes in use. `jv` and `iw`-style codes are today's and yesterday's of the same languages.
const ALIASES: [(&str, &str); 18] = [
    ("burmese", "my"),
    ("valencian", "ca"),
    ("flemish", "nl"),
    ("haitian", "ht"),
    ("letzeburgesch", "lb"),
    ("pushto", "ps"),
    ("panjabi", "pa"),
    ("moldavian", "ro"),
    ("moldovan", "ro"),
    ("sinhalese", "si"),
    ("castilian", "es"),
    ("mandarin", "zh"),
    ("farsi", "fa"),
    ("filipino", "tl"),
    ("jv", "jw"),
    ("iw", "he"),
    ("nb", "no"),
    ("in", "id"),
];

/// The code of a language given by code or English name, in any case: `de`, `DE`, `de-AT`, `German`.
pub fn language(given: &str) -> Option<&'static str> {
    let given = given.trim().to_ascii_lowercase();
    let exact = |given: &str| {
        let table = LANGUAGES
            .iter()
            .find(|(code, name)| given == *code || given == *name);
        let aliases = || ALIASES.iter().find(|(alias, _)| given == *alias);
        table
            .map(|(code, _)| *code)
            .or_else(|| aliases().map(|(_, code)| *code))
    };
    // A code with a region or a script; Whisper has no dialects.
    exact(&given).or_else(|| match given.split_once(['-', '_']) {
        Some((code, _)) if (2..=3).contains(&code.len()) => exact(code),
        _ => None,
    })
}

/// The lower-case English name of a language code.
pub fn language_name(code: &str) -> Option<&'static str> {
    LANGUAGES
        .iter()
        .find(|(known, _)| *known == code)
        .map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_codes_and_names_in_any_case() {
        for given in ["de", "DE", "German", "GERMAN", " german ", "de-AT", "de_CH"] {
            assert_eq!(language(given), Some("de"), "{given}");
        }
        assert_eq!(language("zh-Hant-TW"), Some("zh"));
        assert_eq!(language("Haitian Creole"), Some("ht"));
        assert_eq!(language("Burmese"), Some("my"));
        assert_eq!(language("yue"), Some("yue"));
        for unknown in ["", "xx", "klingon", "deutsch", "d", "german-x", "-"] {
            assert_eq!(language(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn table_is_consistent() {
        for (code, name) in LANGUAGES {
            assert_eq!(language(code), Some(code));
            assert_eq!(language(name), Some(code));
            assert_eq!(language_name(code), Some(name));
        }
        for (alias, code) in ALIASES {
            assert!(language_name(code).is_some() && language_name(alias).is_none());
            assert_eq!(language(alias), Some(code));
        }
    }
}
