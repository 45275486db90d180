const auto = document.getElementById('auto');
const state = document.getElementById('state');
async function update() {
  // Replacing the text would drop what the reader has selected.
  if (auto.checked && !document.hidden && getSelection().isCollapsed) {
    try {
      const response = await fetch('/', {cache: 'no-store'});
      const next = new DOMParser().parseFromString(await response.text(), 'text/html').querySelector('main');
      document.querySelector('main').replaceWith(next);
      state.textContent = '';
    } catch {
      state.textContent = 'The sandbox does not respond.';
    }
  }
  setTimeout(update, 2000);
}
setTimeout(update, 2000);
