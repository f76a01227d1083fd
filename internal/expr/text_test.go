package expr_test

import (
	"errors"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/expr"
)

func TestText(t *testing.T) {
	home, err := expr.CompileText(`"home" in headers ? headers["home"] : key`)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		in   expr.Input
		want string
	}{
		{expr.Input{Key: []byte("eu")}, "eu"},
		{expr.Input{Key: []byte("eu"), Headers: []event.Header{{Key: "home", Value: []byte("x")}, {Key: "home", Value: []byte("us")}}}, "us"},
	} {
		if got, err := home.Value(&tt.in); err != nil || got != tt.want {
			t.Errorf("%+v gives %q, %v", tt.in, got, err)
		}
	}
	plain, err := expr.CompileText(`headers["home"]`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Value(&expr.Input{}); !errors.Is(err, expr.ErrEvaluate) {
		t.Errorf("a missing header gives %v", err)
	}
	if _, err := expr.CompileText(`key == "x"`); err == nil {
		t.Error("a predicate was taken for a text")
	}
	if _, err := expr.Compile(`key`); err == nil {
		t.Error("a text was taken for a predicate")
	}
}
