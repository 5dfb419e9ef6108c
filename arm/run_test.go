package arm_test

import (
	"path/filepath"
	"testing"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/arm/armtest"
)

func TestRun(t *testing.T) {
	t.Setenv("SOARBOOK_CACHE", t.TempDir())
	for _, method := range []string{"soar", "searchr1"} {
		dir := t.TempDir()
		path := armtest.Write(t, dir, nil)
		c, err := arm.ReadConfig(path, arm.Call{Method: method})
		if err != nil {
			t.Fatal(err)
		}
		r, err := arm.Run(t.Context(), c, filepath.Join(dir, "run"), arm.Options{Notes: t.Output(), Progress: func(phase string, done, total int, text string) {
			t.Log(phase, done, total, text)
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", r)
	}
}
