package control

import "github.com/geogate/geogate/internal/event"

// Copy is a partition of a remote topic in the own cluster.
type Copy struct {
	Topic     event.TopicID
	Partition int32
}

// News is what has changed of what seats read of control: which topic holds which copy,
// and what links say of copies. Progress, settings and barriers are none: nobody who reads
// records waits for them here.
type News struct {
	All    bool // it may concern every seat
	Copies map[Copy]struct{}
}

// Subscription collects news for one reader until it takes them.
type Subscription struct {
	f    *Follower
	wake chan struct{} // holds one: there are news

	news News // guarded by Follower.mu
}

// Subscribe begins to collect news. The subscription must be closed.
func (f *Follower) Subscribe() *Subscription {
	s := &Subscription{f: f, wake: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subscriptions[s] = struct{}{}
	return s
}

// Close ends the collecting.
func (s *Subscription) Close() {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	delete(s.f.subscriptions, s)
}

// Wake receives once there are news that were not taken.
func (s *Subscription) Wake() <-chan struct{} { return s.wake }

// Take gives the news since the last call.
func (s *Subscription) Take() News {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	news := s.news
	s.news = News{}
	return news
}

// publishNews gives subscribers what has changed; the caller holds mu.
func (f *Follower) publishNews() {
	all := f.topicsChanged
	f.topicsChanged = false
	changed := make(map[Copy]struct{})
	for _, l := range f.links {
		l.takeChanged(changed)
	}
	if !all && len(changed) == 0 {
		return
	}
	for s := range f.subscriptions {
		s.news.All = s.news.All || all
		if s.news.Copies == nil {
			s.news.Copies = make(map[Copy]struct{}, len(changed))
		}
		for c := range changed {
			s.news.Copies[c] = struct{}{}
		}
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}
