package mirror

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

func TestTestimonyGolden(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/format/ownership.md")
	if err != nil {
		t.Fatal(err)
	}
	const record = `{"v":1,"unit":"air/eu","epoch":33,"owner":"","state":"FENCED","by":"us","prev":12,"epochs":null}`
	value, err := json.Marshal(testimony{Version: 1, Revision: 13, Record: json.RawMessage(record)})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"v":1,"revision":13,"record":`; !bytes.HasPrefix(value, []byte(want)) || !bytes.Contains(doc, []byte(want)) {
		t.Errorf("testimony %s, or docs/format/ownership.md does not show it", value)
	}
	if revision, u, err := ParseTestimony(value); err != nil || revision != 13 || u.Unit != "air/eu" {
		t.Errorf("testimony %d, %+v, %v", revision, u, err)
	}
}
