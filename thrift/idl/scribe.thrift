// Scribe, as BlkKin speaks it: framed TBinary, port 9410 (classic Scribe: 1463).
// The methods of fb303's base service that BlkKin answers are included, so that this file needs no other.

namespace py blkin.scribe

enum fb_status {
  DEAD = 0,
  STARTING = 1,
  ALIVE = 2,
  STOPPING = 3,
  STOPPED = 4,
  WARNING = 5
}

service FacebookService {
  string getName(),
  string getVersion(),
  fb_status getStatus(),
  string getStatusDetails(),
  map<string, i64> getCounters(),
  i64 getCounter(1: string key),
  i64 aliveSince()
}

enum ResultCode {
  // The server has accepted all entries.
  OK = 0,
  // The server has accepted no entry: send the same call again later.
  TRY_LATER = 1
}

struct LogEntry {
  // "zipkin": the message is a zipkinCore.Span in TBinary, base64.
  1: string category,
  2: string message
}

service scribe extends FacebookService {
  ResultCode Log(1: list<LogEntry> messages)
}
