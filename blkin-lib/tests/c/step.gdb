# Steps over every call of stepped() by single instructions and says how many there were.
set pagination off
set confirm off
set startup-with-shell off
set disable-randomization off
break *stepped
run
set $calls = 0
set $steps = 0
while $_isvoid($_exitcode)
  set $entry = $sp
  while $sp <= $entry
    stepi
    set $steps = $steps + 1
  end
  set $calls = $calls + 1
  continue
end
printf "stepped over %d calls by %d instructions\n", $calls, $steps
quit $_exitcode
