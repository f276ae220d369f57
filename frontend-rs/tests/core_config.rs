//! From the command line to models, devices and workers.

use std::path::{Path, PathBuf};

use clap::Parser;
use denizen_frontend::cli::{Cli, Command, ServeArgs};
use denizen_frontend::config::{
    devices, models, parse_devices, parse_model, workers, Source, BUILTIN,
};
use denizen_frontend::supervise::Device;

fn args(arguments: &[&str]) -> ServeArgs {
    let command = ["denizen", "serve"].iter().chain(arguments);
    match Cli::parse_from(command).command {
        Command::Serve(args) => *args,
        _ => unreachable!(),
    }
}

/// A folder that exists while the test runs.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir()
            .join(format!("denizen-config-{}", std::process::id()))
            .join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_folder_is_named_after_itself_unless_it_gets_a_name() {
    let folder = Folder::new("tiny");
    let spec = parse_model(folder.text()).unwrap();
    assert_eq!(
        (spec.name.as_str(), &spec.source),
        ("tiny", &Source::Folder(folder.0.clone()))
    );
    assert_eq!(
        parse_model(&format!("{}/", folder.text())).unwrap().name,
        "tiny"
    );
    let spec = parse_model(&format!("org/x={}", folder.text())).unwrap();
    assert_eq!(
        (spec.name.as_str(), spec.source),
        ("org/x", Source::Folder(folder.0.clone()))
    );
}

#[test]
fn a_folder_with_an_equals_sign_or_an_at_sign_is_itself() {
    for name in ["a=b", "a@b", "a=b@v1"] {
        let folder = Folder::new(name);
        let spec = parse_model(folder.text()).unwrap();
        assert_eq!(
            (spec.name.as_str(), &spec.source),
            (name, &Source::Folder(folder.0.clone()))
        );
    }
}

#[test]
fn a_hub_id_is_owner_and_name() {
    let spec = parse_model("Qwen/Qwen3.5-0.8B").unwrap();
    let id = "Qwen/Qwen3.5-0.8B".to_owned();
    assert_eq!((spec.name, spec.source), (id.clone(), Source::Hub(id)));
    let spec = parse_model("small=Qwen/Qwen3.5-0.8B@cuda:1,cpu").unwrap();
    assert_eq!(spec.name, "small");
    assert_eq!(spec.devices, Some(vec![Device::Cuda(1), Device::Cpu]));
    for text in [
        "Qwen", "./a/b", "/a/b", "~/a", "a/b/c", "a b/c", "a/", "/a", "",
    ] {
        assert!(parse_model(text).is_err(), "{text}");
    }
}

#[test]
fn no_model_means_the_built_in_one() {
    let specs = models(&args(&[])).unwrap();
    assert_eq!(
        (specs[0].name.as_str(), &specs[0].source),
        (BUILTIN, &Source::Builtin)
    );
}

#[test]
fn devices_are_those_of_the_option_and_of_the_models() {
    assert_eq!(
        parse_devices("cuda:0, cuda:1"),
        Ok(vec![Device::Cuda(0), Device::Cuda(1)])
    );
    let all = |arguments: &[&str]| {
        let args = args(arguments);
        devices(&args, &models(&args).unwrap(), &[Device::Cuda(7)]).unwrap()
    };
    assert_eq!(all(&[]), [Device::Cuda(7)]);
    assert_eq!(all(&["--devices", "auto"]), [Device::Cuda(7)]);
    assert_eq!(all(&["--devices", "cpu"]), [Device::Cpu]);
    assert_eq!(
        all(&[
            "--devices",
            "cuda:0",
            "--model",
            "a/a",
            "--model",
            "b=b/b@cuda:2"
        ]),
        [Device::Cuda(0), Device::Cuda(2)]
    );
    // Every model has its own devices: the default of --devices is nobody's.
    assert_eq!(all(&["--model", "a/a@cuda:1"]), [Device::Cuda(1)]);
}

#[test]
fn each_worker_gets_the_models_of_its_device_and_its_share_of_the_threads() {
    let args = args(&[
        "--model",
        "all=a/a",
        "--model",
        "one=b/b@cuda:0",
        "--devices",
        "cpu,cuda:0,cuda:1",
        "--max-rows",
        "7",
        "--no-resident",
    ]);
    let specs = models(&args).unwrap();
    let used = devices(&args, &specs, &[Device::Cpu]).unwrap();
    let folders = [PathBuf::from("/a"), PathBuf::from("/b")];
    let plans = workers(&args, &specs, &folders, &used, 8);
    let names: Vec<Vec<String>> = plans.iter().map(|plan| plan.model_names()).collect();
    assert_eq!(names, [vec!["all"], vec!["all", "one"], vec!["all"]]);
    assert_eq!(plans[1].models[1].path, Path::new("/b"));
    let threads: Vec<Option<u32>> = plans.iter().map(|plan| plan.threads).collect();
    assert_eq!(threads, [Some(8), None, None]);
    assert_eq!(
        plans.iter().map(|plan| plan.worker).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    let limits = &plans[0].limits;
    assert_eq!(
        (limits.max_rows, limits.overlap, limits.resident),
        (Some(7), true, false)
    );
}

#[test]
fn workers_on_one_cpu_share_its_threads() {
    for (arguments, cores, threads) in [
        (&["--workers-per-device", "3"][..], 8, 2),
        (&["--workers-per-device", "3", "--threads", "6"], 8, 2),
        (&["--workers-per-device", "3"], 2, 1),
    ] {
        let args = args(arguments);
        let specs = models(&args).unwrap();
        let plans = workers(&args, &specs, &["/m".into()], &[Device::Cpu], cores);
        assert_eq!(plans.len(), 3);
        assert!(
            plans.iter().all(|plan| plan.threads == Some(threads)),
            "{arguments:?}"
        );
    }
}
