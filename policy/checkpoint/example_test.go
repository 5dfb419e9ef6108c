package checkpoint_test

import (
	"fmt"

	"github.com/soarbook/soarbook/policy/checkpoint"
)

func Example() {
	c, err := checkpoint.Open("../testdata/qwen2-tiny")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	fmt.Println(c.Config.Architecture, "with", c.Config.NumLayers, "layers and", len(c.Config.Tensors()), "tensors")

	up, err := c.Tensor(checkpoint.LayerPrefix(0) + "mlp.up_proj.weight")
	if err != nil {
		fmt.Println(err)
		return
	}
	weights := make([]float32, up.Len()) // [in, out], as the forward pass wants it
	if err := up.ReadFloat32Transposed(weights); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(up.DType, up.Shape)

	a, err := checkpoint.OpenAdapter("../testdata/qwen2-tiny/adapter", c.Config)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer a.Close()
	fmt.Println("adapter of rank", a.Config.Rank, "on", len(a.LoRAs), "linear layers, scale", a.Config.Scale())
	// Output:
	// Qwen2ForCausalLM with 3 layers and 38 tensors
	// F32 [96 48]
	// adapter of rank 4 on 21 linear layers, scale 2
}
