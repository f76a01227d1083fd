package gateway

import (
	"bytes"
	"errors"

	"github.com/go-json-experiment/json/jsontext"
)

// maxBatchRecords bounds the records of one JSON batch: what an entry takes beside its text
// is many times as much as a short record has bytes.
const maxBatchRecords = 10_000

// isBatch tells whether a JSON body is a batch, {"records":[…]}: its first member says so.
func isBatch(body []byte) bool {
	in := jsonScan{text: body}
	return in.take('{') && in.next() == '"' && in.word(`"records"`) && in.take(':')
}

// decodeBatch calls each for the records of a batch, in order, with what is wrong with one
// in itself, if anything. What it gives shares memory with body. Its error, about the
// batch as a whole, is a *problem; each may have been called before.
func decodeBatch(head *writeHead, body []byte, each func(rec *record, wrong error)) error {
	in, ok := newJSONScan(body)
	if !ok {
		return explainBatch(body)
	}
	n, met := 0, false
	var tooMany error
	ok = in.members(func(name []byte) bool {
		if string(name) != "records" || met {
			return false
		}
		met = true
		return in.elements(func() bool {
			if n == maxBatchRecords {
				tooMany = newProblem(codeBodyTooLarge, "the batch has more than %d records; send the rest in another request, or all as %s", maxBatchRecords, typeNDJSON)
				return false
			}
			rec := record{partition: -1}
			wrong, ok := head.element(&in, &rec)
			if ok {
				head.complete(&rec, n)
				each(&rec, wrong)
			}
			n++
			return ok
		})
	}) && in.end()
	switch {
	case tooMany != nil:
		return tooMany
	case !ok:
		return explainBatch(body)
	}
	return nil
}

// element reads one record of a batch. wrong says what is wrong with it; ok is false if
// that is the JSON itself.
func (head *writeHead) element(in *jsonScan, rec *record) (wrong error, ok bool) {
	in.next()
	begin := in.at
	p := recordScan{jsonScan: *in, rec: rec, maxHeaders: head.maxHeaders}
	if p.record() {
		in.at = p.at
		return nil, true
	}
	// From a bytes.Buffer jsontext reads in place, and no more than the value.
	raw, err := jsontext.NewDecoder(bytes.NewBuffer(in.text[begin:len(in.text):len(in.text)]), grammar()...).ReadValue()
	if err != nil {
		return nil, false
	}
	in.at = begin + len(raw)
	slow, err := explainRecord(in.text[begin:in.at:in.at], head.maxHeaders)
	if err != nil {
		return err, true
	}
	*rec = *slow
	return nil, true
}

// explainBatch says what is wrong with a batch as a whole.
func explainBatch(body []byte) error {
	in, err := newJSONReader(body)
	p := parser{jsonReader: in}
	if err == nil {
		_, err = p.fields("", map[string]func(string) error{"records": p.records})
	}
	if err == nil {
		err = p.end()
	}
	if err != nil && !errors.Is(err, errEnough) {
		return p.failure(err)
	}
	return invalid(codeMalformed, p.errs...)
}

// records passes the records of a batch.
func (p *parser) records(pointer string) error {
	if p.kind() != '[' {
		_, err := p.value()
		p.complain(pointer, "must be an array")
		return err
	}
	return p.elements(func(int) error {
		_, err := p.dec.ReadValue()
		return p.fail(err)
	})
}
